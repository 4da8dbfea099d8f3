"""The same study on every engine: are server, private state, scores and history equal, bit for bit?

    python tests/benchmarks/engine_parity.py                 the whole grid, about half an hour on two cores
    python tests/benchmarks/engine_parity.py --quick         one composed method, two sites, two rounds
    python tests/benchmarks/engine_parity.py --engine poc --method fedbn --sites 2

Each engine is started on loopback, driven through `fedskew`, and stopped. Prints one line a study; exit code 1 if any
differs.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engines")]

import torch  # noqa: E402
from laws import difference  # noqa: E402
from poc import ADMIN, SERVER, federation  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from superlink import NAME, Deployment  # noqa: E402

from monai_fedskew.data.synthetic import write_synthetic_study  # noqa: E402
from monai_fedskew.sites.site_file import SiteFile, write_site_file  # noqa: E402

METHODS = ("fedavg", "fedbn", "fedrdn+fedbn+fedprox:mu=0.2")
BUNDLE = ROOT / "tests" / "tiny_bundle"


def fedskew(*arguments: object) -> None:
    """Run the command line; show what it said if it fails."""
    command = [sys.executable, "-m", "monai_fedskew.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def simulator(work: Path, data: Path, sites: tuple[str, ...], method: str, rounds: int) -> tuple[Path, Path | None]:
    """Run in this machine's own simulator; what the others are compared with."""
    named = [word for site in sites for word in ("--site", site)]
    fedskew("simulate", BUNDLE, "--data", data, "--method", method, "--rounds", rounds, *named, "--out", work / "run")
    return work / "run", None


def flare(work: Path, data: Path, sites: tuple[str, ...], method: str, rounds: int) -> tuple[Path, Path | None]:
    """Run in FLARE's simulator: a process a site."""
    named = [word for site in sites for word in ("--site", site)]
    call = ["simulate", BUNDLE, "--data", data, "--method", method, "--rounds", rounds, *named]
    fedskew("nvflare", *call, "--out", work / "run")
    return work / "run", work / "run" / "flare" / "state"


def poc(work: Path, data: Path, sites: tuple[str, ...], method: str, rounds: int) -> tuple[Path, Path | None]:
    """Run on a FLARE federation: separate processes, mutual TLS on loopback."""
    with federation(work / "federation", sites) as running:
        fedskew("nvflare", "site-setup", running.kit(SERVER), "--runs", work / "runs", "--apply")
        for site in sites:
            own = ["--bundle", BUNDLE, "--data", data / site, "--state", work / "state" / site]
            fedskew("nvflare", "site-setup", running.kit(site), *own, "--apply")
        settings = ["--study", "study", "--method", method, "--rounds", rounds, "--min-sites", len(sites)]
        fedskew("nvflare", "job", *settings, "--out", work / "job")
        fedskew("nvflare", "submit", work / "job", "--startup-kit", running.kit(ADMIN))
    return work / "runs" / "study", work / "state"


def flower(work: Path, data: Path, sites: tuple[str, ...], method: str, rounds: int) -> tuple[Path, Path | None]:
    """Run on a SuperLink and SuperNodes with TLS and node authentication."""
    configs = {}
    for site in sites:
        path = work / "sites" / site / "fedskew.json"
        write_site_file(path, SiteFile(site, BUNDLE, data / site, work / "state" / site, path.parent / "results"))
        configs[site] = f'site="{site}" fedskew="{path}"'
    settings = ["--study", "study", "--method", method, "--rounds", rounds, "--sites", len(sites)]
    fedskew("flower", "app", *settings, "--out", work / "app")
    with Deployment(work / "deployment", configs) as running:
        done = running.call("fedskew", "flower", "run", str(work / "app"), NAME, timeout=1800)
        if done.returncode:
            raise SystemExit(done.stdout[-4000:])
        return running.runs / "study", work / "state"


ENGINES: dict[str, Callable[..., tuple[Path, Path | None]]] = {
    "flare-simulator": flare,
    "flare-poc": poc,
    "flower-tls": flower,
}


def differences(run: Path, state: Path | None, reference: Path, sites: tuple[str, ...], rounds: int) -> dict[str, str]:
    """Say of each thing that should be equal how it differs; empty where it does not."""
    last = f"rounds/{rounds}"
    found = {
        "server": difference(_load(run / last / "server.safetensors"), _load(reference / last / "server.safetensors"))
    }
    assert state is not None
    for site in sites:
        (path,) = (state / site).rglob(f"{rounds}.safetensors")
        found[f"private {site}"] = difference(_load(path), _load(reference / last / "sites" / f"{site}.safetensors"))
    one, two = ((folder / "history.jsonl").read_text() for folder in (run, reference))
    found["history"] = "" if one == two else "other rows"
    scores = [_scores(folder) for folder in (run, reference)]
    found["test scores"] = "" if scores[0] == scores[1] else f"{scores[0]} against {scores[1]}"
    return found


def _scores(run: Path) -> Mapping[str, Any]:
    summary = json.loads((run / "summary.json").read_text())
    return {key: summary[key] for key in ("sites", "mean", "worst", "chosen_round")}


def _load(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def main() -> None:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--method", action="append")
    parser.add_argument("--sites", action="append", type=int, choices=(2, 3, 4))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    methods = given.method or (METHODS[-1:] if given.quick else METHODS)
    counts, rounds = given.sites or ([2] if given.quick else [2, 4]), given.rounds or (2 if given.quick else 5)
    folder, is_equal = Path(tempfile.mkdtemp(prefix="fedskew-parity-")), True
    print(
        f"{'engine':16} {'sites':>5}  {'method':30} {'seconds':>7}  compared with `fedskew simulate`, {rounds} rounds"
    )
    try:
        data = write_synthetic_study(folder / "data", sites=tuple("ABCD"), subjects=16, windows=4, n_regions=6)
        for count in counts:
            sites = tuple("ABCD"[:count])
            for number, method in enumerate(methods):
                reference, _ = simulator(folder / f"simulator-{count}-{number}", data, sites, method, rounds)
                for name in given.engine or ENGINES:
                    started = time.monotonic()
                    run, state = ENGINES[name](folder / f"{name}-{count}-{number}", data, sites, method, rounds)
                    seconds = time.monotonic() - started
                    found = differences(run, state, reference, sites, rounds)
                    bad = [f"{what}: {how}" for what, how in found.items() if how]
                    is_equal &= not bad
                    verdict = "DIFFER " + "; ".join(bad) if bad else f"EQUAL ({', '.join(found)})"
                    print(f"{name:16} {count:5}  {method:30} {seconds:7.1f}  {verdict}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()
