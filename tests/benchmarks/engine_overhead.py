"""What our federation adds to an engine: start-up and rounds beside a bare job that trains the same bundle by hand.

    python tests/benchmarks/engine_overhead.py                    both engines, about half an hour on two cores
    python tests/benchmarks/engine_overhead.py --quick            a smoke run; its figures mean nothing
    python tests/benchmarks/engine_overhead.py --engine flare --turns 3

Two sites, tests/tiny_bundle, fedavg, processes on loopback with TLS. Ours and the bare job take turns on one running
federation. Both score the received model and train it for an epoch in one message that carries the whole state, ask as
often, and leave each new model on the server's disk. The bare server builds the bundle's network for its first model,
as the engines' examples do; ours has no bundle at the server and asks the sites (the survey). Start-up is from the
submission (FLARE: submit_job; Flower: `flwr run`) to the end of the first round. CPU seconds are those of all processes
of the job; they depend less than the others on what else the machine does.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engines"))

from engine_parity import BUNDLE, fedskew  # noqa: E402
from engine_runs import ANSWERS, BARE, METHOD, OURS, SITES, Flare, Flower, Run  # noqa: E402
from poc import ADMIN, SERVER, Federation, federation  # noqa: E402
from ratios import Estimate, Times, conditions, show  # noqa: E402
from superlink import Deployment  # noqa: E402

from monai_fedskew.cli.nvflare_submit import session  # noqa: E402
from monai_fedskew.data.synthetic import write_synthetic_study  # noqa: E402
from monai_fedskew.sites.site_file import SiteFile, write_site_file  # noqa: E402

Runs = dict[str, list[Run]]
_BESIDE = 3  # messages of ours that are no round: survey, score of the last model, end


def main() -> None:
    """Measure the engines asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--engine", action="append", choices=("flare", "flower"))
    parser.add_argument("--turns", type=int, help="runs of each candidate [5, quick 1]")
    asked = parser.parse_args()
    # as where a package is installed: the first process leaves compiled modules for the others
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    conditions("engine_overhead.py")
    print(f"nvflare {version('nvflare')}, flwr {version('flwr')}; {len(SITES)} sites, {METHOD}, one thread a process")
    turns = asked.turns or (1 if asked.quick else 5)
    work = Path(tempfile.mkdtemp(prefix="fedskew-overhead-"))
    try:
        data = write_synthetic_study(work / "data", sites=SITES, subjects=16, windows=4, n_regions=6)
        for name, measure in (("flare", flare), ("flower", flower)):
            if name in (asked.engine or ("flare", "flower")):
                measure(work / name, data, turns, asked.quick)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def flare(work: Path, data: Path, turns: int, quick: bool) -> None:
    """Both jobs on one federation, with our polling and with FLARE's own."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    rounds, stock = (4, 2) if quick else (30, 10)
    with federation(work / "federation", SITES) as running:
        _admit(running, work, data)
        with session(running.kit(ADMIN)) as opened:
            run = Flare(running, opened, work, data).run
            if not quick:
                take_turns(run, (OURS, BARE), 1, rounds=2)  # modules are compiled, files are in memory
            seen = take_turns(run, (OURS, BARE), turns, rounds=rounds)
            slow = take_turns(run, (OURS, BARE), max(1, turns // 2), rounds=stock, is_stock=True)
    report(f"FLARE, sites ask every 0.2 s, {rounds} rounds a run", seen)
    show("a round of ours", _of(seen[OURS], "round"), unit="s", most=0.7)
    report(f"FLARE, stock polling (2 s), {stock} rounds a run", slow)
    show("a round of ours", _of(slow[OURS], "round"), unit="s", most=2.5)


def flower(work: Path, data: Path, turns: int, quick: bool) -> None:
    """Both apps on one SuperLink, and one that only answers."""
    rounds = 2 if quick else 5
    nodes = {}
    for site in SITES:
        path = work / "sites" / site / "fedskew.json"
        write_site_file(path, SiteFile(site, BUNDLE, data / site, work / "state" / site, path.parent / "results"))
        nodes[site] = f'site="{site}" fedskew="{path}" bundle="{BUNDLE}" data="{data / site}"'
    with Deployment(work / "deployment", nodes, path=(HERE,)) as running:
        run = Flower(running, work).run
        if not quick:
            take_turns(run, (OURS, BARE), 1, rounds=1)
        seen = take_turns(run, (OURS, BARE, ANSWERS), turns, rounds=rounds)
    report(f"Flower, {rounds} rounds a run", seen)
    for who, runs in seen.items():
        show(f"life of one message's process, {who}", _of(runs, "life"), unit="s")
    lives = {who: [run.life for run in runs] for who, runs in seen.items()}
    times = Times({**lives, OURS: [run.round for run in seen[OURS]]})
    show("round of ours / life of a process that trains by hand", times.ratio(OURS, BARE), most=1.0)
    show("round of ours / life of a process that only answers", times.ratio(OURS, ANSWERS))
    counts = {(run.messages / len(SITES) - _BESIDE) / rounds for run in seen[OURS]}
    verdict = "reached" if max(counts) <= 1 else "MISSED"
    print(f"{'processes a site and round, ours':<70}{max(counts):8.2f}        target <= 1: {verdict}")


def report(title: str, seen: Runs) -> None:
    """Print start-up and rounds of all, and the ratios of ours and bare."""
    print(f"\n== {title}")
    for what, field, most in (
        ("submission to the end of round 1", "start", 1.1),
        ("a round afterwards", "round", 1.1),
        ("CPU, submission to the end of round 1", "start_cpu", None),
        ("CPU, a round afterwards", "round_cpu", None),
    ):
        for who, runs in seen.items():
            show(f"{what}, {who}", _of(runs, field), unit="s")
        times = Times({who: [getattr(run, field) for run in runs] for who, runs in seen.items()})
        show(f"{what}, {OURS} / {BARE}", times.ratio(OURS, BARE), most=most)
    surveyed = [run.survey for run in seen[OURS] if run.survey is not None]
    if surveyed:
        show("submission to the end of the survey, ours", Estimate.of(surveyed), unit="s")


def take_turns(run: Callable[..., Run], names: Sequence[str], turns: int, **more: Any) -> Runs:
    """Run the candidates in turns, in alternating order."""
    seen: Runs = {name: [] for name in names}
    for turn in range(turns):
        for name in names[:: 1 if turn % 2 == 0 else -1]:
            seen[name].append(run(name, **more))
    return seen


def _admit(running: Federation, work: Path, data: Path) -> None:
    """Set up the kits for our jobs, and let them build the bare classes too."""
    fedskew("nvflare", "site-setup", running.kit(SERVER), "--runs", work / "runs", "--apply")
    for site in SITES:
        own = ["--bundle", BUNDLE, "--data", data / site, "--state", work / "state" / site]
        fedskew("nvflare", "site-setup", running.kit(site), *own, "--apply")
    for name in (SERVER, *SITES):
        path = running.kit(name) / "local" / "resources.json"
        content = json.loads(path.read_text())
        content["class_allow_list"] += ["bare_flare.Averager", "bare_flare.Trainer"]
        path.write_text(json.dumps(content))


def _of(runs: Sequence[Run], field: str) -> Estimate:
    return Estimate.of([getattr(run, field) for run in runs])


if __name__ == "__main__":
    main()
