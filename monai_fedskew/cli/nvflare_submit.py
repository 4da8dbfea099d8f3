"""Send a job to a running federation and watch it."""

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from monai_fedskew.cli.nvflare_job import read_job, with_resume
from monai_fedskew.cli.progress import bar
from monai_fedskew.errors import ConfigError, FedSkewError, RoundError

__all__ = ["session", "submit_job", "wait_for"]

_POLL_SECONDS, _START_SECONDS, _LOGIN_SECONDS = 1.0, 10.0, 15.0
_LATE_SECONDS = 5.0
_REFUSED = re.compile(r"Component '[\w.]+'(?= at config path .* is not in allow_list)")
_SITE_LOG = "ERRORLOG_"
_GOOD = "FINISHED:COMPLETED"
_ENDED = "FLARE ended the job"  # all that the study knows when a site's process could not start, or died


@contextmanager
def session(kit: Path) -> Iterator[Any]:
    """Log in to a running federation with an admin's startup kit.

    Raises:
        ConfigError: no admin's kit, or the server does not answer.
        RoundError: it stopped answering while the session was used.
    """
    from monai_fedskew.engines.nvflare import new_secure_session

    try:
        user = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
        opened = new_secure_session(user, str(kit), timeout=_LOGIN_SECONDS)
    except Exception as error:  # FLARE raises many kinds
        raise ConfigError(
            f"--startup-kit {kit}: cannot log in ({type(error).__name__}: {error}); give an admin's kit of a server "
            "that runs"
        ) from error
    with closing(opened):
        try:
            yield opened
        except (FedSkewError, click.ClickException):
            raise
        except Exception as error:  # the same, where the server went away
            if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
                raise  # a file of ours
            raise RoundError(
                f"the server does not answer any more ({type(error).__name__}: {error}); a job that was sent goes on "
                "there if the server does, else send it again with --resume"
            ) from error


def submit_job(session: Any, job: Path, *, resume: bool) -> str:
    """Send a job; return the number FLARE gives it.

    Args:
        session: see ``session``.
        job: the job folder.
        resume: have it go on after the last committed round, whatever the folder says.

    Raises:
        ConfigError: FLARE does not take it.
        DataError: it is no job of ours.
    """
    with tempfile.TemporaryDirectory() as folder:
        sent = Path(folder) / read_job(job).study  # FLARE shows the folder's name
        if resume:
            with_resume(job, sent.parent)
        else:
            shutil.copytree(job, sent)
        try:
            return str(session.submit_job(str(sent)))
        except Exception as error:  # FLARE raises many kinds
            raise ConfigError(f"{job}: FLARE does not take the job: {error}") from error


def wait_for(session: Any, number: str, *, out: Path | None) -> None:
    """Show status and rounds until a job ends, and fetch its result.

    Args:
        session: see ``session``.
        number: what ``submit_job`` returned.
        out: where the study's files are put; None leaves them in the admin's transfer folder.

    Raises:
        RoundError: the job ended before the study was complete; its reason.
    """
    status, since = "", time.monotonic()
    with bar("round", has_lines=True) as advance:
        while not status.startswith(("FINISHED", "FAILED", "ABANDONED")):
            if (found := session.get_job_meta(number)["status"]) != status:
                status, since = found, time.monotonic()
                click.echo(f"job {number}: {status}")
            # asked while its processes start, FLARE writes errors of its own into the job's log
            if status == "RUNNING" and time.monotonic() - since > _START_SECONDS and (at := _progress(session, number)):
                advance(at[0], "", at[1])
            time.sleep(_POLL_SECONDS)
    meta = session.get_job_meta(number)
    result = Path(session.download_job_result(number)) / "workspace" / "fedskew"
    if not (result / "summary.json").is_file():
        raise RoundError(f"job {number} ended with {status}: {_reason(session, number, result, meta)}")
    if status != _GOOD:  # rounds go on without a site; FLARE never calls such a job completed
        click.echo("the study is complete; FLARE missed a site at the end of the job")
    if out is not None:
        shutil.copytree(result, out)
    click.echo(f"result: {out or result}")


def _progress(session: Any, number: str) -> tuple[int, int] | None:
    """The committed round and their number, as RoundController tells FLARE's statistics."""
    from monai_fedskew.engines.nvflare import JobNotFound, JobNotRunning, NoConnection

    try:
        told = session.show_stats(number, "server")["server"]["fedskew"]
        return int(told["round"]), int(told["rounds"])
    # before the first round, or the job ends just now: FLARE tells that its process is gone as if the server were
    except (JobNotFound, JobNotRunning, NoConnection, KeyError, TypeError):
        return None


def _reason(session: Any, number: str, result: Path, meta: dict[str, Any]) -> str:
    """What the study said, else who refused it, as far as FLARE knows."""
    file = result / "failure.txt"
    told = file.read_text().strip() if file.is_file() else ""
    if told and not told.startswith(_ENDED):
        return told
    if refused := _refused(session, number, result.parent / "error_log.txt"):
        return "; ".join(refused) + " is not in the allow list there; `fedskew nvflare site-setup KIT --apply` adds it"
    undeployed = [line for line in meta.get("job_deploy_detail") or [] if not line.endswith("OK")]
    return (
        told
        or "; ".join(undeployed)
        or (
            "a process died, or a site refused the job (`fedskew nvflare preflight` there says why); send the job "
            "again with --resume"
        )
    )


def _refused(session: Any, number: str, server_log: Path) -> list[str]:
    """Who may not build what, from the error logs that kits send to the server, a little after the job has ended."""
    until = time.monotonic() + _LATE_SECONDS
    while True:
        logs = {"server": server_log}
        if session.list_job_components(number):
            folder = Path(session.download_job_components(number))
            logs |= {path.name.removeprefix(_SITE_LOG): path for path in sorted(folder.rglob(f"{_SITE_LOG}*"))}
        texts = {name: path.read_text(errors="replace") for name, path in logs.items() if path.is_file()}
        refused = [f"{name}: {match[0]}" for name, text in texts.items() if (match := _REFUSED.search(text))]
        if refused or time.monotonic() > until:
            return refused
        time.sleep(_POLL_SECONDS)
