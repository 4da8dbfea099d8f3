"""A study in FLARE's simulator, with FLARE's noise in a file."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from monai_fedskew.cli.nvflare_job import require_study, write_job
from monai_fedskew.cli.progress import bar
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site_file import SiteFile, write_site_file

__all__ = ["run_simulator"]

# the module that FLARE's FedJob.simulator_run starts, which gives away neither the process nor where its output goes;
# the command `nvflare simulator` is deprecated
_NAME = re.compile(r"[A-Za-z0-9_.~-]+")
_SIMULATOR = (sys.executable, "-m", "nvflare.private.fed.app.simulator.simulator")


def run_simulator(
    method: str,
    settings: Settings,
    sources: Mapping[str, BundleSite],
    *,
    out: Path,
    task_timeout: int = 0,
    force: bool = False,
) -> None:
    """Run a study in FLARE's simulator; its workspace, logs and the sites' private state end up in OUT/flare.

    Args:
        method: as text.
        settings: how it is run.
        sources: bundle, data and overrides of each site.
        out: the RUN folder; its name is the study's.
        task_timeout: see ``job``.
        force: replace an existing RUN folder.

    Raises:
        ConfigError: see ``require_study``, ``out`` exists, or a path or a site's name that FLARE cannot take.
        RoundError: the job did not end well; what it wrote stays beside ``out``.
    """
    require_study("--out", out.name, method)
    _require_names(sources)
    work = out.with_name(f"{out.name}.flare")  # the server wants RUN for itself until the end
    _clear(out, work, force=force)
    write_job(out.name, method, settings, task_timeout=task_timeout, resume=False, out=work / "job" / out.name)
    _write_local(work, out, sources)
    names = ["-c", ",".join(sources), "-t", str(len(sources))]  # as FLARE's own job API calls it
    command = [*_SIMULATOR, str(work / "job" / out.name), "-w", str(work / "workspace"), *names]
    with bar(f"{method} on FLARE", settings.rounds, has_lines=True) as advance, _started(command, work) as process:
        while process.poll() is None:
            advance(checkpoint.latest(out) or 0, "")
            time.sleep(0.2)
        advance(checkpoint.latest(out) or 0, "")
    if not (out / "summary.json").is_file():
        raise RoundError(f"FLARE's simulator did not finish: {_reason(work, process.returncode)}; see {work}/log.txt")
    for results in (work / "results").glob(f"*/{out.name}/*"):
        target = out / "sites" / results.parent.parent.name
        target.parent.mkdir(exist_ok=True)
        results.rename(target)
    work.rename(out / "flare")


@contextmanager
def _started(command: Sequence[str], work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """FLARE's simulator with its sites, all in one process group, ended on the way out."""
    with (work / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _require_names(names: Iterable[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name) or name == "server":
            raise ConfigError(
                f"site {name!r}: FLARE takes letters a-z, digits and _ . ~ - in a name, and not `server`; leave it out "
                "(--site) or prepare it under another name"
            )


def _clear(out: Path, work: Path, *, force: bool) -> None:
    if " " in str(out):
        raise ConfigError(f"--out {out}: FLARE's simulator takes no path with a space; choose another folder")
    if out.exists() and not force:
        raise ConfigError(f"--out {out} exists; choose another folder or replace it with --force")
    if out.exists() and not (out / "run.json").is_file():
        raise ConfigError(f"--force: {out} is no RUN folder (no run.json); it is left alone")
    if work.exists() and not (work / "job").is_dir():
        raise ConfigError(f"{work} is in the way and none of ours; move it away, or choose another --out")
    if work.exists() and not force:
        raise ConfigError(f"{work} is left of a run that failed; remove it, or replace both with --force")
    for folder in (out, work):
        if folder.exists():
            shutil.rmtree(folder)


def _write_local(work: Path, out: Path, sources: Mapping[str, BundleSite]) -> None:
    """One folder ``local`` for the server and all sites, which FLARE copies to each."""
    local = work / "workspace" / "local"
    _allow(local)
    (local / "fedskew.json").write_text(json.dumps({"runs": str(out.parent)}))
    for name, source in sources.items():
        assert source.data is not None
        own = SiteFile(
            name, source.bundle, source.data, work / "state" / name, work / "results" / name, source.overrides
        )
        write_site_file(local / f"fedskew.{name}.json", own)


def _allow(local: Path) -> None:
    from monai_fedskew.engines.nvflare import CLASSES, DEFAULT_CLASS_ALLOW_LIST

    local.mkdir(parents=True)
    resources = {"format_version": 2, "class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, *CLASSES.values()]}
    (local / "resources.json").write_text(json.dumps(resources))


def _reason(work: Path, code: int | None) -> str:
    told = work / "workspace" / "server" / "simulate_job" / "fedskew" / "failure.txt"
    return told.read_text().strip() if told.is_file() else f"exit code {code}"
