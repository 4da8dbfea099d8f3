"""Training the nuclei UNet through the bundle and MONAI's trainer against a hand-written PyTorch loop.

    python tests/benchmarks/nuclei_training.py

Both train the bundle's network with its loss and optimizer on its batches of four crops from one site's pictures, one
thread. The loop does nothing but fetch, forward, backward, step; ours is a whole `Client.fit`: the weights are
received, the site is seeded, MONAI's SupervisedTrainer runs the epochs, the mean loss is kept and the weights are
copied out. Also measured: the same loop on MONAI's own transforms (`RandSpatialCropd`, `RandFlipd`, `RandRotate90d`)
in place of `RandPatchd`, and one fetched batch of each.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.transforms import EnsureTyped, RandFlipd, RandRotate90d, RandSpatialCropd
from PIL import Image
from ratios import Times, conditions, options, show, take_turns
from torch.utils.data import DataLoader

from monai_fedskew.core.method import parse
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.prepare import prepare_images
from monai_fedskew.data.manifest import site_folders
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site import Site

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "bundles" / "nuclei_segmentation"
SITE, OTHER, CROPS = "fluor_256", "histology_256x320", 24
FULL: dict[str, Any] = {"samples_per_epoch": CROPS}
SMALL = {**FULL, "channels": [8, 16, 32, 64], "num_res_units": 0}
TARGETS = {"fedavg": 0.85, "fedrdn": None, "fedbn": None, "fedprox": None}
LOOP, OURS, TRANSFORMS = "hand-written loop", "fedavg", "hand-written loop, MONAI's crop, flip and rotation"


def main() -> None:
    """Measure all candidates in one run."""
    asked = options(__doc__)
    torch.set_num_threads(1)
    conditions("nuclei_training.py")
    turns = {"least": 2, "most": 2} if asked.quick else {"least": 9, "most": 41}
    with tempfile.TemporaryDirectory() as scratch:
        folder = study(Path(scratch))
        for what, sizes in (("the bundle's network", FULL), ("the network of the study `microscopes`", SMALL)):
            opened = BundleSite(BUNDLE, SITE, folder / SITE, sizes).open()
            candidates: dict[str, Callable[[], int]] = {
                LOOP: by_hand(opened, opened.trainer.data_loader.dataset),
                **{name: through_bundle(name, folder, sizes) for name in TARGETS},
                TRANSFORMS: by_hand(opened, WithTransforms(opened.trainer.data_loader.dataset)),
            }
            times = take_turns(candidates, pairs=[(OURS, LOOP)], **turns)
            report(what, opened, times)


def report(what: str, opened: Site, times: Times) -> None:
    """Print iterations per second, then the ratios."""
    parameters = sum(p.numel() for p in opened.model.parameters())
    print(f"\n{what}: {parameters:,} parameters, 4 crops of 128 x 128 an iteration, {CROPS // 4} an epoch")
    print("Iterations per second")
    for name in times.seconds:
        show(name, times.rate(name), unit="it/s")
    print(f"Ours / {LOOP}")
    for name, target in TARGETS.items():
        show(name, times.ratio(LOOP, name), least=target)
    print(f"{LOOP} on RandPatchd / on MONAI's transforms")
    show("RandPatchd", times.ratio(TRANSFORMS, LOOP))


def study(scratch: Path) -> Path:
    """Prepare two of the real microscopes, or made-up pictures of the same sizes."""
    raw = Path(os.environ.get("FEDSKEW_TESTDATA", ROOT.parent / "shared" / "testdata")) / "dsb2018_nuclei"
    if not raw.is_dir():
        print("No real nuclei (set FEDSKEW_TESTDATA to the folder above dsb2018_nuclei/): noise of the same sizes.")
        raw = scratch / "raw"
        for site, size in ((SITE, (256, 256)), (OTHER, (256, 320, 3))):
            made_up(raw / site, size)
    names = Options(label_names=("background", "nucleus"), binary_masks=True, sites=(SITE, OTHER))
    prepare_images(raw, scratch / "prepared", names)
    return scratch / "prepared"


def made_up(folder: Path, size: tuple[int, ...]) -> None:
    """Write 40 pictures of noise, whose bright half is the mask."""
    random = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    for number in range(40):
        values = random.integers(0, 256, size, dtype=np.uint8)
        Image.fromarray(values).save(folder / "images" / f"{number}.png")
        mask = (values.reshape(*size[:2], -1)[..., 0] > 127).astype(np.uint8)
        Image.fromarray(mask).save(folder / "labels" / f"{number}.png")


class WithTransforms(torch.utils.data.Dataset[dict[str, Any]]):
    """The pictures of a site in memory, cropped, flipped and turned by MONAI's own transforms."""

    def __init__(self, images: Any) -> None:
        # the bundle's steps: what reads, one step that is random, what finishes
        steps = images._steps.transforms
        place = next(k for k, step in enumerate(steps) if type(step).__name__ == "RandPatchd")
        both = ["image", "label"]
        self.pictures = [images._steps(dict(entry), end=place) for entry in images._entries]
        self.steps = [
            RandSpatialCropd(both, [128, 128], random_size=False),
            RandFlipd(both, prob=0.5, spatial_axis=0),
            RandRotate90d(both, prob=0.75),
            *steps[place + 1 :],
            EnsureTyped(both, track_meta=False),
        ]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> dict[str, Any]:
        made = self.pictures[index]
        for step in self.steps:
            made = step(made)
        return made


def by_hand(opened: Site, data: Any) -> Callable[[], int]:
    """An epoch as one writes it without a framework, on the batches of the bundle."""
    network, loss_function = opened.model, opened.loss_function
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def epoch() -> int:
        network.train()
        order = torch.randperm(len(data))[:CROPS]
        loader = DataLoader(data, batch_sampler=[rows.tolist() for rows in order.split(4)])
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_function(network(batch["image"]), batch["label"])
            loss.backward()
            optimizer.step()
        return len(loader)

    return epoch


def through_bundle(name: str, folder: Path, sizes: dict[str, Any]) -> Callable[[], int]:
    """A round of local training at one site of two, as the simulator runs it."""
    method, settings = parse(name, METHODS), Settings(rounds=1, weights="equal", choose="last")
    clients = {
        site: Client(method, BundleSite(BUNDLE, site, path, sizes), settings)
        for site, path in site_folders(folder).items()
    }
    server = Server(method, settings)
    server.open([client.survey() for client in clients.values()])
    client, cast = clients[SITE], server.cast()
    return lambda: client.fit(cast).steps


if __name__ == "__main__":
    main()
