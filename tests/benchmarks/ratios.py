"""Ratios from one run: the candidates take turns, so that whatever else the machine does touches all of them alike."""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["Estimate", "Times", "conditions", "in_child", "options", "peak_bytes", "real_abide", "show", "take_turns"]

_ROOT = Path(__file__).resolve().parents[2]
_SETTLED = 0.03  # repeats go on until the median is known to within 3 %
_NOTCH = 1.57  # median +- 1.57 IQR / sqrt(n): the 95 % notch of a box plot (McGill, Tukey and Larsen 1978)


@dataclass(frozen=True)
class Estimate:
    """A median with its quartiles and the half-width within which the median is known.

    `best` is, for a ratio, that of the shortest times seen: what a quiet machine would show.
    """

    median: float
    low: float
    high: float
    within: float
    repeats: int
    best: float | None = None

    @staticmethod
    def of(values: Sequence[float]) -> "Estimate":
        """Summarise repeats."""
        middle = statistics.median(values)
        if len(values) < 2:
            return Estimate(middle, middle, middle, 0.0, len(values))
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return Estimate(middle, low, high, _NOTCH * (high - low) / len(values) ** 0.5, len(values))


@dataclass(frozen=True)
class Times:
    """Seconds per unit of each candidate, one entry a turn; entry k of all of them is of the same turn."""

    seconds: Mapping[str, list[float]]

    def of(self, name: str, *, scale: float = 1.0, minus: str | None = None) -> Estimate:
        """Return a candidate's time, scaled; less another's of the same turn if asked for."""
        values = self.seconds[name]
        if minus is not None:
            values = [a - b for a, b in zip(values, self.seconds[minus], strict=True)]
        return Estimate.of([value * scale for value in values])

    def rate(self, name: str) -> Estimate:
        """Return a candidate's units of work a second."""
        return Estimate.of([1 / value for value in self.seconds[name]])

    def ratio(self, slow: str, fast: str) -> Estimate:
        """Return how many times as long as ``fast`` the candidate ``slow`` takes, turn by turn."""
        above, below = self.seconds[slow], self.seconds[fast]
        found = Estimate.of([a / b for a, b in zip(above, below, strict=True)])
        return replace(found, best=min(above) / min(below))


def take_turns(
    candidates: Mapping[str, Callable[[], float | None]],
    *,
    pairs: Sequence[tuple[str, str]],
    least: int = 7,
    most: int = 41,
    limit_seconds: float = 240.0,
) -> Times:
    """Time the candidates in turns, in alternating order, until the ratios of ``pairs`` have settled.

    Args:
        candidates: what is timed; returns how many units of work it did (None is one). Run once before, untimed.
        pairs: (slow, fast) names whose ratio must be known to within 3 %.
        least: turns at least.
        most: turns at most.
        limit_seconds: no new turn is begun after this.
    """
    for run in candidates.values():
        run()
    times = Times({name: [] for name in candidates})
    begin = time.perf_counter()
    for turn in range(most):
        for name in list(candidates)[:: 1 if turn % 2 == 0 else -1]:
            start = time.perf_counter()
            units = candidates[name]()
            times.seconds[name].append((time.perf_counter() - start) / (units or 1))
        ratios = [times.ratio(*pair) for pair in pairs]
        is_settled = all(ratio.within <= _SETTLED * ratio.median for ratio in ratios)
        if turn + 1 >= least and (is_settled or time.perf_counter() - begin > limit_seconds):
            break
    return times


def show(what: str, value: Estimate, *, unit: str = "x", least: float | None = None, most: float | None = None) -> bool:
    """Print one line: the value, its spread, the target if there is one and whether it was reached."""
    digits = 2 if abs(value.median) < 10 else 1
    best = "" if value.best is None else f", shortest times {value.best:.{digits}f}"
    spread = f"(quartiles {value.low:.{digits}f} .. {value.high:.{digits}f}, {value.repeats} repeats{best})"
    line = f"{what:<70}{value.median:8.{digits}f} {unit:<5}{spread if value.repeats > 1 else '(measured once)'}"
    target = least if least is not None else most
    if target is None:
        print(line, flush=True)
        return True
    is_reached = value.median >= target if least is not None else value.median <= target
    verdict = "reached" if is_reached else "MISSED"
    if abs(value.median - target) <= value.within:
        verdict += ", but the target lies within the uncertainty of the median"
    print(f"{line}  target {'>=' if least is not None else '<='} {target:g}: {verdict}", flush=True)
    return is_reached


def conditions(script: str) -> None:
    """Print what was measured on: processors, load, versions."""
    packages = ("torch", "monai", "numpy", "nilearn")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{script}: {os.cpu_count()} processors, load {load}; Python {platform.python_version()}, {versions}")


def options(description: str | None) -> argparse.Namespace:
    """Read the command line: ``--quick`` for a smoke run, ``--child`` for the scripts' own sub-processes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats; the figures mean nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def real_abide() -> Path | None:
    """Return the folder of real ABIDE series, or say that it is absent."""
    root = Path(os.environ.get("FEDSKEW_TESTDATA", _ROOT.parent / "shared" / "testdata"))
    if (root / "abide").is_dir():
        return root / "abide"
    print("No real ABIDE data (set FEDSKEW_TESTDATA to the folder above abide/): synthetic series of the same size.")
    return None


def in_child(script: str, **arguments: Any) -> dict[str, Any]:
    """Run ``script --child ARGUMENTS`` in a process of its own and return the JSON it prints last."""
    command = [sys.executable, script, "--child", json.dumps(arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def peak_bytes() -> int:
    """Return this process's peak resident memory.

    Linux's VmHWM where there is one: ru_maxrss also counts the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
