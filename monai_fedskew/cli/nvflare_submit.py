"""Send a job to a running federation and watch it."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from monai_fedskew.cli.nvflare_job import read_job, with_resume
from monai_fedskew.cli.progress import bar
from monai_fedskew.errors import ConfigError, RoundError

__all__ = ["submit_job", "wait_for"]

_POLL_SECONDS = 1.0
_GOOD = "FINISHED:COMPLETED"


def submit_job(session: Any, job: Path, *, resume: bool) -> str:
    """Send a job; return the number FLARE gives it.

    Args:
        session: see ``engines.nvflare.session``.
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
        session: see ``engines.nvflare.session``.
        number: what ``submit_job`` returned.
        out: where the study's files are put; None leaves them in the admin's transfer folder.

    Raises:
        RoundError: the job did not end well; its reason.
    """
    status = ""
    with bar("study") as advance:
        while not status.startswith(("FINISHED", "FAILED", "ABANDONED")):
            if (found := session.get_job_meta(number)["status"]) != status:
                status = found
                click.echo(f"job {number}: {status}")
            done = _progress(session, number) if status == "RUNNING" else {}
            if done:
                advance(done["round"], "", done["rounds"])
            time.sleep(_POLL_SECONDS)
    meta = session.get_job_meta(number)
    result = Path(session.download_job_result(number)) / "workspace" / "fedskew"
    if status != _GOOD:
        raise RoundError(f"job {number} ended with {status}: {_reason(result, meta)}")
    if out is not None:
        shutil.copytree(result, out)
    click.echo(f"result: {out or result}")


def _progress(session: Any, number: str) -> dict[str, int]:
    """What RoundController tells FLARE's statistics; nothing before the first round, or when the job has just ended."""
    told = session.show_stats(number, "server")
    found = told.get("server", {}).get("fedskew", {}) if isinstance(told, dict) else {}
    return found if isinstance(found, dict) and "round" in found else {}


def _reason(result: Path, meta: dict[str, Any]) -> str:
    told = result / "failure.txt"
    if told.is_file():
        return told.read_text().strip()
    refused = [line for line in meta.get("job_deploy_detail") or [] if not line.endswith("OK")]
    return "; ".join(refused) or (
        "the study itself did not fail: a site refused the job (`fedskew nvflare preflight` there says why) or its "
        "process died; send the job again with --resume"
    )
