"""Training through the bundle and MONAI's trainer against a hand-written PyTorch loop.

    python tests/benchmarks/training.py

All candidates train ConnectomeMLP 5995-16-16-2 with SGD on batches of 100 rows of one memory-mapped file, one thread.
The loop does nothing but fetch, forward, backward, step; ours is a whole `Client.fit`: the weights are received, the
site is seeded, MONAI's SupervisedTrainer runs an epoch, the mean loss is kept and the weights are copied out.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedTrainer
from monai.transforms import Compose, EnsureTyped, NormalizeIntensityd
from ratios import Times, conditions, options, real_abide, show, take_turns

from monai_fedskew.core.method import parse
from monai_fedskew.data.abide.prepare import Options, prepare
from monai_fedskew.data.datasets import ConnectomeDataset
from monai_fedskew.data.manifest import site_folders
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS
from monai_fedskew.networks import ConnectomeMLP
from monai_fedskew.sites.bundle import BundleSite

BUNDLE = Path(__file__).resolve().parents[2] / "bundles" / "abide_connectome"
SITE, BATCH, RATE = "NYU", 100, 0.01
TARGETS = {"fedavg": 0.80, "fedrdn": 0.75, "fedprox:mu=0.2": None, "sitenorm": None, "fedbn": None,
           "fedrdn+fedbn+fedprox:mu=0.2": None}  # fmt: skip
LOOP, LOOP_INDEXED = "hand-written loop (index_select)", "hand-written loop (table[rows])"
PLAIN, NORMALISED = "dictionaries, EnsureTyped", "dictionaries, EnsureTyped + NormalizeIntensityd"


def main() -> None:
    """Measure all candidates in one run."""
    asked = options(__doc__)
    torch.set_num_threads(1)
    conditions("training.py")
    with tempfile.TemporaryDirectory() as scratch:
        folder = study(Path(scratch) / "prepared", quick=asked.quick)
        data = ConnectomeDataset(folder / SITE, "train")
        table = torch.from_numpy(np.load(folder / SITE / "vectors.npy", mmap_mode="c"))
        steps = -(-len(data) // BATCH)
        print(f"{len(data)} training rows of {SITE}, {steps} iterations an epoch")
        candidates: dict[str, Callable[[], int]] = {
            LOOP: by_hand(data, table, lambda rows: torch.index_select(table, 0, rows)),
            LOOP_INDEXED: by_hand(data, table, lambda rows: table[rows]),
            **{name: through_bundle(name, folder) for name in TARGETS},
            PLAIN: dictionaries(data, table, []),
            NORMALISED: dictionaries(data, table, [NormalizeIntensityd("image")]),
        }
        pairs = [(name, LOOP) for name in ("fedavg", "fedrdn")] + [(PLAIN, "fedavg")]
        times = take_turns(candidates, pairs=pairs, most=2 if asked.quick else 41, least=2 if asked.quick else 9)
    report(times)


def report(times: Times) -> None:
    """Print iterations per second, then the ratios."""
    print("\nIterations per second")
    for name in times.seconds:
        show(name, times.rate(name), unit="it/s")
    print(f"\nOurs / {LOOP}")
    for name, target in TARGETS.items():
        show(name, times.ratio(LOOP, name), least=target)
    print(f"\nOurs / {LOOP_INDEXED}, as such loops are usually written")
    for name in TARGETS:
        show(name, times.ratio(LOOP_INDEXED, name))
    print("\nOurs / per-sample MONAI dictionary pipeline")
    show(f"fedavg / {PLAIN}", times.ratio(PLAIN, "fedavg"), least=5)
    show(f"sitenorm / {NORMALISED}", times.ratio(NORMALISED, "sitenorm"))


def study(folder: Path, *, quick: bool) -> Path:
    """Prepare the four real sites, or write made-up ones of the same width."""
    real = real_abide()
    if real is not None:
        print("Preparing the real data ...", flush=True)
        prepare(real, folder, Options(protocol="fedbn"))
        return folder
    sites = ("NYU", "UCLA", "UM", "USM")
    return write_synthetic_study(folder, sites=sites, subjects=16 if quick else 40, windows=145, n_regions=110)


def by_hand(data: ConnectomeDataset, table: torch.Tensor, fetch: Callable[[torch.Tensor], Any]) -> Callable[[], int]:
    """An epoch as one writes it without a framework."""
    rows, labels = torch.from_numpy(data.rows), torch.from_numpy(data.labels)
    network = ConnectomeMLP(table.shape[1], 16, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    loss_function = torch.nn.CrossEntropyLoss()

    def epoch() -> int:
        network.train()
        order = torch.randperm(len(rows))
        batches = order.split(BATCH)
        for index in batches:
            optimizer.zero_grad()
            loss = loss_function(network(fetch(rows[index])), labels[index])
            loss.backward()
            optimizer.step()
        return len(batches)

    return epoch


def through_bundle(name: str, folder: Path) -> Callable[[], int]:
    """A round of local training at one site of four, as the simulator runs it."""
    method, settings = parse(name, METHODS), Settings(rounds=1, weights="equal", choose="last")
    clients = {
        site: Client(method, BundleSite(BUNDLE, site, path, {"batch_size": BATCH, "lr": RATE}), settings)
        for site, path in site_folders(folder).items()
    }
    server = Server(method, settings)
    server.open([client.survey() for client in clients.values()])
    client, cast = clients[SITE], server.cast()
    return lambda: client.fit(cast).steps


def dictionaries(data: ConnectomeDataset, table: torch.Tensor, transforms: list[Any]) -> Callable[[], int]:
    """MONAI as its tutorials show it: one dictionary a sample, default collation, default decollation."""
    rows = table.numpy()
    samples = [{"image": rows[row], "label": label} for row, label in zip(data.rows, data.labels, strict=True)]
    compose = Compose([EnsureTyped(["image", "label"]), *transforms])
    loader = DataLoader(Dataset(samples, compose), batch_size=BATCH, shuffle=True)
    network, steps = ConnectomeMLP(table.shape[1], 16, 2), min(25, len(loader))
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=1,
        train_data_loader=loader,
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=RATE),
        loss_function=torch.nn.CrossEntropyLoss(),
        epoch_length=steps,
    )

    def part_of_epoch() -> int:
        before = trainer.state.iteration
        trainer.state.max_epochs = trainer.state.epoch + 1
        trainer.run()
        return int(trainer.state.iteration - before)

    return part_of_epoch


if __name__ == "__main__":
    main()
