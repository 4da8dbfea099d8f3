"""What the simulator costs beside the training itself, and what aggregation costs.

    python tests/benchmarks/overhead.py

A tiny network at four small sites. Overhead a site and round = (time of a round - time of its bare steps) / sites. The
bare steps are a hand-written PyTorch loop over the same batches of the same sites: an epoch of training and a pass over
the validation rows with its accuracy. So the overhead holds everything else: MONAI's and ignite's engines, messages,
seeding, private state, aggregation, history and, with a RUN folder, the checkpoint of the round.
"""

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ratios import Times, conditions, options, show, take_turns

from monai_fedskew.core.aggregate import weighted_mean
from monai_fedskew.core.method import parse
from monai_fedskew.core.part import Part
from monai_fedskew.core.state import own
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site import Site

ROOT = Path(__file__).resolve().parents[2]
NAMES, REGIONS = ("NORTH", "SOUTH", "EAST", "WEST"), 6
BUNDLES = {
    "abide_connectome": (ROOT / "bundles" / "abide_connectome", {"in_features": 15, "batch_size": 16}),
    "tests/tiny_bundle": (ROOT / "tests" / "tiny_bundle", {"batch_size": 16}),
}
ALIVE, REBUILT, BARE = "kept alive", "rebuilt", "bare steps"
# conv and linear layers of AlexNet with batch norm and 10 classes, 57 million parameters
ALEXNET = [(64, 3, 11, 11), (192, 64, 5, 5), (384, 192, 3, 3), (256, 384, 3, 3), (256, 256, 3, 3),
           (4096, 9216), (4096, 4096), (10, 4096)]  # fmt: skip


def main() -> None:
    """Measure both."""
    asked = options(__doc__)
    torch.set_num_threads(1)
    conditions("overhead.py")
    rounds, most = (4, 2) if asked.quick else (20, 25)
    for bundle in BUNDLES:
        with tempfile.TemporaryDirectory() as scratch:
            simulator(bundle, Path(scratch), rounds=rounds, most=most)
    aggregation(most=2 if asked.quick else 15, shrink=16 if asked.quick else 1)


def simulator(bundle: str, scratch: Path, *, rounds: int, most: int) -> None:
    """Rounds of fedbn with all sites alive and with one at a time, without and with a RUN folder."""
    folder, overrides = BUNDLES[bundle]
    study = write_synthetic_study(scratch / "study", sites=NAMES, subjects=16, windows=8, n_regions=REGIONS)
    sources = {name: BundleSite(folder, name, study / name, overrides) for name in NAMES}
    counter = itertools.count()

    def federation(*, max_alive: int | None, is_saved: bool) -> Callable[[], float]:
        return lambda: rounds_of(sources, rounds, max_alive, scratch / f"run{next(counter)}" if is_saved else None)

    kinds = {ALIVE: (None, 10), REBUILT: (1, 40)}
    candidates: dict[str, Callable[[], float]] = {BARE: bare_rounds(list(sources.values()), rounds)}
    for kind, (max_alive, _) in kinds.items():
        for suffix, is_saved in (("", False), (", RUN folder", True)):
            candidates[kind + suffix] = federation(max_alive=max_alive, is_saved=is_saved)
    # the ratio to the bare steps settles the number of repeats; what is shown are differences
    times = seconds_a_site(candidates, pairs=[(f"{kind}, RUN folder", BARE) for kind in kinds], most=most)
    print(f"\nSimulator on {bundle}: {len(NAMES)} sites, {rounds} rounds of fedbn, milliseconds a site and round")
    for name in candidates:
        show(f"{name}: whole time", times.of(name, scale=1e3), unit="ms")
    for kind, (_, target) in kinds.items():
        for suffix in ("", ", RUN folder"):
            overhead = times.of(kind + suffix, scale=1e3, minus=BARE)
            show(f"{kind}{suffix}: overhead", overhead, unit="ms", most=target)


def seconds_a_site(candidates: dict[str, Callable[[], float]], *, pairs: list[tuple[str, str]], most: int) -> Times:
    """Take turns; each candidate says how long a median round took, opening the federation left out."""
    found: dict[str, list[float]] = {name: [] for name in candidates}

    def recorded(name: str) -> Callable[[], None]:
        return lambda: found[name].append(candidates[name]() / len(NAMES))

    take_turns({name: recorded(name) for name in candidates}, pairs=pairs, most=most, least=min(most, 7))
    return Times({name: values[1:] for name, values in found.items()})  # the first was the untimed call


def rounds_of(sources: dict[str, BundleSite], rounds: int, max_alive: int | None, run: Path | None) -> float:
    """Run a federation; return the seconds of its median round, the first (warm-up) left out."""
    if run is not None:
        run.mkdir()
    ends: list[float] = []
    simulate(
        parse("fedbn", METHODS),
        sources,
        Settings(rounds=rounds, weights="equal"),
        run=run,
        max_alive=max_alive,
        on_round=lambda number, history: ends.append(time.perf_counter()),
    )
    return median_step(ends)


def bare_rounds(sources: list[BundleSite], rounds: int) -> Callable[[], float]:
    """The same steps by hand: score the validation rows, train an epoch, at every site."""
    parts: tuple[Part, ...] = ()
    sites = [source.open(parts) for source in sources]

    def run() -> float:
        ends = []
        for _ in range(rounds):
            for site in sites:
                score_by_hand(site)
                train_by_hand(site)
            ends.append(time.perf_counter())
        return median_step(ends)

    return run


def score_by_hand(site: Site) -> float:
    """Accuracy on the validation rows."""
    site.model.eval()
    right = seen = 0
    with torch.no_grad():
        for batch in batches_of(site.evaluator):
            right += int((site.model(batch["image"]).argmax(1) == batch["label"]).sum())
            seen += len(batch["label"])
    return right / seen


def train_by_hand(site: Site) -> None:
    """One epoch."""
    site.model.train()
    for batch in batches_of(site.trainer):
        site.optimizer.zero_grad()
        loss = site.loss_function(site.model(batch["image"]), batch["label"])
        loss.backward()
        site.optimizer.step()


def batches_of(engine: Any) -> Any:
    """The batches an engine would see, without its loader."""
    loader = engine.data_loader
    return (loader.dataset.__getitems__(index) for index in loader.batch_sampler)


def median_step(ends: list[float]) -> float:
    """Median of the differences."""
    steps = sorted(after - before for before, after in itertools.pairwise(ends))
    return steps[len(steps) // 2]


def aggregation(*, most: int, shrink: int) -> None:
    """weighted_mean of four large states against copying them once, both by one thread."""
    shapes = [(shape[0] // shrink or 1, *shape[1:]) for shape in ALEXNET]
    states = [{str(k): torch.randn(shape) for k, shape in enumerate(shapes)} for _ in range(4)]
    size = sum(tensor.numel() for tensor in states[0].values())
    mean, copies = "weighted_mean", "copying them once"
    candidates: dict[str, Callable[[], None]] = {
        mean: lambda: discard(weighted_mean(states, [0.25] * 4)),
        copies: lambda: discard([{key: own(value) for key, value in state.items()} for state in states]),
    }
    times = take_turns(candidates, pairs=[(mean, copies)], most=most, least=min(most, 7))
    print(f"\nAggregation of four states of {size / 1e6:.1f} million parameters")
    for name in candidates:
        show(name, times.of(name, scale=1e3), unit="ms")
    show(f"{mean} / {copies}", times.ratio(mean, copies), most=3)


def discard(value: object) -> None:
    """Drop a result, so that its memory is free before the next turn."""


if __name__ == "__main__":
    main()
