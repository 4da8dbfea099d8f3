"""Hundreds of sites: memory with a few of them alive at once, and the same result bit for bit.

    python tests/benchmarks/many_sites.py

Every run is a process of its own. A round holds every site's update until it is averaged, and every private state:
memory cannot fall below that. So a run with n sites of which k are alive is compared with a run of k sites plus that
much for each of the n - k others; a fifth more is allowed for the gaps that so many tensors leave in the heap.
"""

import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratios import Estimate, conditions, in_child, options, peak_bytes, show

REGIONS, ROUNDS = 40, 2
FEATURES = REGIONS * (REGIONS - 1) // 2
BUNDLE = Path(__file__).resolve().parents[2] / "bundles" / "abide_connectome"
MIB = 2**20
RUNS = (("fedbn", 16), ("fedbn", 400), ("fedrdn+fedbn+fedprox:mu=0.2", 16))  # method and width of the network


def main() -> None:
    """Compare few sites alive with all of them alive, for a small and a larger network."""
    asked = options(__doc__)
    if asked.child:
        print(json.dumps(child(**json.loads(asked.child))))
        return
    conditions("many_sites.py")
    alive, counts = (2, (6, 12)) if asked.quick else (4, (50, 200))
    with tempfile.TemporaryDirectory() as scratch:
        for method, width in RUNS[:1] if asked.quick else RUNS:
            print(f"\n{method}, {ROUNDS} rounds, abide_connectome {FEATURES}-{width}-{width}-2; peak of a process")
            compare(method, width, Path(scratch), alive=alive, counts=counts)


def compare(method: str, width: int, scratch: Path, *, alive: int, counts: tuple[int, ...]) -> None:
    """Run with ``alive`` sites, then each number of sites with so many alive and with all."""

    def run(sites: int, max_alive: int | None) -> dict[str, Any]:
        folder = str(scratch / str(sites))
        found = in_child(__file__, study=folder, sites=sites, max_alive=max_alive, method=method, width=width)
        kind = f"{max_alive} alive" if max_alive else "all alive"
        peak, seconds = found["peak"] / MIB, found["seconds"]
        print(f"{sites:>5} sites, {kind}: peak {peak:7.1f} MiB, {seconds:6.1f} s, result {found['digest'][:12]}")
        return found

    least = run(alive, None)
    for sites in counts:
        few, everyone = run(sites, alive), run(sites, None)
        needed = least["peak"] + (sites - alive) * few["state"]
        cost = (everyone["peak"] - least["peak"]) / (sites - alive) / MIB
        what = f"a live site costs {cost:.2f} MiB, its update and private state {few['state'] / MIB:.2f}"
        extra = (few["peak"] - needed) / MIB
        print(
            f"{sites:>5} sites: {what}; {alive} alive: {extra:.0f} MiB more than needed ({extra / cost:.0f} live sites)"
        )
        show(f"peak with {sites} sites, {alive} alive / needed", Estimate.of([few["peak"] / needed]), most=1.2)
        is_same = few["digest"] == everyone["digest"]
        verdict = "reached" if is_same else "MISSED"
        print(f"{sites} sites: {alive} alive gives what all alive gives, bit for bit: {verdict}")


def child(study: str, sites: int, max_alive: int | None, method: str, width: int) -> dict[str, Any]:
    """Run one federation; return peak memory and a digest of everything it leaves."""
    from monai_fedskew.core.method import parse
    from monai_fedskew.data.manifest import site_folders
    from monai_fedskew.data.synthetic import write_synthetic_study
    from monai_fedskew.engines.simulator import simulate
    from monai_fedskew.federation.settings import Settings
    from monai_fedskew.methods import METHODS
    from monai_fedskew.sites.bundle import BundleSite

    logging.disable(logging.WARNING)
    if not Path(study).exists():
        names = [f"S{number:03d}" for number in range(sites)]
        write_synthetic_study(study, sites=names, subjects=16, windows=4, n_regions=REGIONS)
    overrides = {"in_features": FEATURES, "batch_size": 16, "hidden": width}
    sources = {site: BundleSite(BUNDLE, site, path, overrides) for site, path in site_folders(study).items()}
    start = time.perf_counter()
    outcome = simulate(parse(method, METHODS), sources, Settings(rounds=ROUNDS, weights="equal"), max_alive=max_alive)
    seconds, peak = time.perf_counter() - start, peak_bytes()
    own = outcome.last_private[min(outcome.last_private)]
    state = sum(value.nbytes for value in (*outcome.cast.tensors.values(), *own.values()))
    return {"peak": peak, "seconds": seconds, "state": state, "digest": digest(outcome)}


def digest(outcome: Any) -> str:
    """SHA-256 over all tensors, scores and events of a run."""
    found = hashlib.sha256()

    def add(owner: str, state: Mapping[str, Any]) -> None:
        for key in sorted(state):
            found.update(f"{owner} {key} {state[key].dtype} {tuple(state[key].shape)}".encode())
            found.update(state[key].numpy().tobytes())

    add("cast", outcome.cast.tensors)
    add("server", outcome.last)
    for kind, states in (("chosen", outcome.private), ("last", outcome.last_private)):
        for site in sorted(states):
            add(f"{kind} {site}", states[site])
    for score in outcome.history.scores:
        metrics = sorted(score.metrics.items())
        found.update(repr((score.site, score.round, score.split, score.samples, metrics)).encode())
    found.update(repr((outcome.round, outcome.history.events)).encode())
    return found.hexdigest()


if __name__ == "__main__":
    main()
