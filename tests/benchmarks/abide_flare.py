"""Real ABIDE on NVIDIA FLARE: four hospitals as four processes with mutual TLS on loopback, beside the simulator.

    python tests/benchmarks/abide_flare.py --data PREPARED          20 rounds of fedrdn+fedbn, about ten minutes
    python tests/benchmarks/abide_flare.py --data PREPARED --rounds 2

PREPARED is what `fedskew abide prepare DATA --protocol fedbn --out PREPARED` writes; each hospital's process is given
its own folder of it only. Prints both tables, whether they are the same, seconds per round and memory of each process.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engines"), str(ROOT / "tests" / "benchmarks")]

import psutil  # noqa: E402
from engine_parity import differences, fedskew  # noqa: E402
from poc import ADMIN, SERVER, Federation, federation  # noqa: E402

SITES = ("NYU", "UCLA", "UM", "USM")
_MEBI = 2**20


@contextmanager
def peaks(named: Callable[[], dict[str, list[psutil.Process]]]) -> Iterator[dict[str, int]]:
    """Watch the memory of processes until the end; yields the highest resident bytes by name."""
    found: dict[str, int] = {}
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(0.5):
            for name, processes in named().items():
                for process in processes:
                    try:
                        found[name] = max(found.get(name, 0), process.memory_info().rss)
                    except psutil.NoSuchProcess:
                        continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join()


def simulate(work: Path, data: Path, method: str, rounds: int) -> dict[str, int]:
    """Run the simulator as a user does, in one process."""
    call = [
        "simulate",
        "abide_connectome",
        "--data",
        data,
        "--method",
        method,
        "--rounds",
        rounds,
        "--out",
        work / "run",
    ]
    command = [sys.executable, "-m", "monai_fedskew.cli.main", *map(str, call)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        with peaks(lambda: {"simulator": [watched]}) as memory:
            if process.wait():
                raise SystemExit(f"{' '.join(command)} failed")
    return memory


def flare(work: Path, data: Path, method: str, rounds: int) -> dict[str, int]:
    """Run the federation: set up at each hospital, one job."""
    with federation(work / "federation", SITES) as running:
        fedskew("nvflare", "site-setup", running.kit(SERVER), "--runs", work / "runs", "--apply")
        for site in SITES:
            own = ["--bundle", "abide_connectome", "--data", data / site, "--state", work / "state" / site]
            fedskew("nvflare", "site-setup", running.kit(site), *own, "--apply")
        settings = ["--study", "abide", "--method", method, "--rounds", rounds, "--min-sites", len(SITES)]
        fedskew("nvflare", "job", *settings, "--out", work / "job")
        with peaks(lambda: _jobs(running)) as memory:
            fedskew("nvflare", "submit", work / "job", "--startup-kit", running.kit(ADMIN))
    return memory


def _jobs(running: Federation) -> dict[str, list[psutil.Process]]:
    return {name: running.job_processes(name) for name in (SERVER, *SITES)}


def show(title: str, run: Path, memory: dict[str, int], seconds: float) -> None:
    """Print a run's table and cost."""
    fedskew_table = subprocess.run(
        [sys.executable, "-c", "import sys; from pathlib import Path; from monai_fedskew.reports import render_table; "
         "print(render_table(Path(sys.argv[1])))", str(run)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    spent = json.loads((run / "summary.json").read_text())["seconds"]
    held = ", ".join(f"{name} {size / _MEBI:.0f} MiB" for name, size in sorted(memory.items()))
    print(f"== {title}\n{fedskew_table}")
    print(f"{spent['per_round']:.2f} s a round, {seconds:.0f} s in all, peak memory: {held}\n")


def main() -> None:
    """Run both and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--method", default="fedrdn+fedbn")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="fedskew-abide-flare-"))
    try:
        data = given.data.resolve()
        for name, run in (("simulator", simulate), ("FLARE, five job processes", flare)):
            started = time.monotonic()
            memory = run(work, data, given.method, given.rounds)
            folder = work / "run" if run is simulate else work / "runs" / "abide"
            show(name, folder, memory, time.monotonic() - started)
        found = differences(work / "runs" / "abide", work / "state", work / "run", SITES, given.rounds)
        for what, how in found.items():
            print(f"{what}: {how or 'equal, bit for bit'}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if any(found.values()) else 0)


if __name__ == "__main__":
    main()
