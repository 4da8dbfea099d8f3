"""One run of ours or of a bare job on a running federation, with its times; for engine_overhead.py."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import bare_flare
import psutil
from engine_parity import BUNDLE, fedskew
from poc import SERVER, Federation
from superlink import NAME, Deployment

__all__ = ["ANSWERS", "BARE", "METHOD", "OURS", "SITES", "Flare", "Flower", "Run"]

SITES, METHOD = ("A", "B"), "fedavg"
OURS, BARE, ANSWERS = "ours", "bare", "only answers"
_LOOK, _WATCH, _LIMIT = 0.02, 0.2, 900.0  # seconds: between two looks at a folder, at processes; longest run


@dataclass(frozen=True)
class Run:
    """What one run took.

    Args:
        start: seconds from the submission to the end of the first round.
        round: seconds of a round afterwards.
        start_cpu: CPU seconds of all processes of the job until then.
        round_cpu: CPU seconds of a round afterwards.
        survey: seconds from the submission to the end of the survey; None without one.
        life: seconds a site's process for one message lives; of Flower only.
        messages: how many such processes there were.
    """

    start: float
    round: float
    start_cpu: float
    round_cpu: float
    survey: float | None
    life: float = float("nan")
    messages: int = 0


class Flare:
    """Runs jobs on a federation.

    Args:
        running: the federation, its kits set up for ours and for the bare job.
        opened: an admin's session.
        work: folder for jobs (jobs/) and what the servers write (runs/).
        data: prepared data of all sites.
    """

    def __init__(self, running: Federation, opened: Any, work: Path, data: Path) -> None:
        self.running, self.opened, self.work, self.data, self.number = running, opened, work, data, 0

    def run(self, who: str, *, rounds: int, is_stock: bool = False) -> Run:
        """Submit a job, follow it, wait until its processes are gone."""
        self.number += 1
        name, jobs = f"{who}-{self.number}", self.work / "jobs"
        out = self.work / "runs" / name
        if who == OURS:
            settings = ["--study", name, "--method", METHOD, "--rounds", rounds, "--min-sites", len(SITES)]
            fedskew("nvflare", "job", *settings, "--out", jobs / name)
        else:
            made = bare_flare.job(name, str(BUNDLE), str(self.data), sites=len(SITES), rounds=rounds, out=str(out))
            made.export_job(str(jobs))
        (config,) = (jobs / name).rglob("config_fed_server.json")
        content = json.loads(config.read_text())
        assert content["server"] == {"task_request_interval": 0.2}
        if is_stock:
            del content["server"]
            config.write_text(json.dumps(content))
        started = time.monotonic()
        number = self.opened.submit_job(str(jobs / name))
        found = _follow(out, rounds, started, cpu=self._cpu, look=lambda: self.running.console(SERVER, *SITES))
        while not self.opened.get_job_meta(number)["status"].startswith("FINISHED"):
            time.sleep(0.5)
        while any(self.running.job_processes(one) for one in (SERVER, *SITES)):
            time.sleep(0.5)
        return found

    def _cpu(self) -> float:
        return sum(_cpu(process) for one in (SERVER, *SITES) for process in self.running.job_processes(one))


class Flower:
    """Runs apps on a SuperLink.

    Args:
        running: the deployment; its nodes' configuration serves ours and the bare app.
        work: folder for apps.
    """

    def __init__(self, running: Deployment, work: Path) -> None:
        self.running, self.work, self.number = running, work, 0

    def run(self, who: str, *, rounds: int) -> Run:
        """Start a run, follow it, wait until it is over."""
        self.number += 1
        study = f"{who.replace(' ', '-')}-{self.number}"
        app, out = self.work / "apps" / study, self.running.runs / study
        settings = ["--study", study, "--method", METHOD, "--rounds", rounds, "--sites", len(SITES)]
        fedskew("flower", "app", *settings, "--out", app)
        if who != OURS:
            for file in (app / "fedskew_app").glob("*_app.py"):
                file.write_text(file.read_text().replace("monai_fedskew.engines.flower", "bare_flower"))
            more = {"bundle": str(BUNDLE), "out": str(out), "does": "query" if who == ANSWERS else "train"}
            with (app / "pyproject.toml").open("a") as file:
                file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
        with _watch(self.running) as lives:
            started = time.monotonic()
            done = self.running.call("flwr", "run", str(app), NAME, "--format", "json")
            number = str(json.loads(done.stdout[done.stdout.index("{") :])["run-id"])
            found = _follow(
                out,
                rounds,
                started,
                cpu=lambda: sum(life.cpu for life in lives.values()),
                look=lambda: self.running.logs("server") + self.running.logs(SITES[0]),
            )
            while not self._status(number).startswith("finished"):
                time.sleep(1)
        clients = [life.ended - life.began for life in lives.values() if life.name == "flwr-clientapp"]
        own = (found.start, found.round, found.start_cpu, found.round_cpu, found.survey)
        return Run(*own, median(clients), len(clients))

    def _status(self, number: str) -> str:
        told = self.running.call("flwr", "list", NAME, "--run-id", number, "--format", "json").stdout
        (run,) = json.loads(told[told.index("{") :])["runs"]
        return str(run["status"])


@dataclass
class _Life:
    name: str
    began: float
    ended: float = field(default_factory=time.time)
    cpu: float = 0.0


def _follow(folder: Path, rounds: int, started: float, *, cpu: Callable[[], float], look: Callable[[], str]) -> Run:
    """Watch the rounds appear as rounds/<number> in a server's folder.

    Args:
        folder: the folder.
        rounds: how many there will be.
        started: when the run was submitted.
        cpu: CPU seconds of the run's processes so far.
        look: what to show if they do not come.
    """
    seen: dict[int, float] = {}
    spent, survey = {}, None
    while rounds not in seen:
        now = time.monotonic()
        if now - started > _LIMIT:
            raise SystemExit(f"{folder}: only rounds {sorted(seen)} in {_LIMIT:g} s\n{look()}")
        names = os.listdir(folder / "rounds") if (folder / "rounds").is_dir() else []
        new = {int(name) for name in names if name.isdigit()} - seen.keys()
        seen |= dict.fromkeys(new, now)
        spent |= {number: cpu() for number in new & {1, rounds}}
        if survey is None and (folder / "run.json").is_file():
            survey = now if json.loads((folder / "run.json").read_text())["sites"] else None
        time.sleep(_LOOK)
    more = max(rounds - 1, 1)
    each, each_cpu = (seen[rounds] - seen[1]) / more, (spent[rounds] - spent[1]) / more
    return Run(seen[1] - started, each, spent[1], each_cpu, None if survey is None else survey - started)


@contextmanager
def _watch(running: Deployment) -> Iterator[dict[int, _Life]]:
    """Note when each process of an app began, when it was last seen alive, and its CPU seconds."""
    owners = {process.pid for name in (*SITES, "server") for process in running.processes(name)}
    found: dict[int, _Life] = {}
    stopped = threading.Event()

    def look() -> None:
        for process in psutil.process_iter(["name", "ppid", "status", "create_time"]):
            about = process.info
            if about["ppid"] not in owners or process.pid in owners:
                continue
            life = found.setdefault(process.pid, _Life(about["name"], about["create_time"]))
            life.cpu = _cpu(process) or life.cpu
            if about["status"] != psutil.STATUS_ZOMBIE:
                life.ended = time.time()

    def watch() -> None:
        while not stopped.wait(_WATCH):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join()


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of a process; 0 if it is gone."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
