"""What would stop a job at a kit, looked at before the job is sent."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from monai_fedskew.cli.nvflare_job import JobFolder, read_job
from monai_fedskew.cli.nvflare_kit import Kit
from monai_fedskew.cli.site_checks import Line, check_site, is_writable
from monai_fedskew.errors import FedSkewError
from monai_fedskew.sites.server_file import read_runs_folder
from monai_fedskew.sites.site_file import read_site_file

__all__ = ["checks"]


def checks(kit_folder: Path, job_folder: Path) -> Iterator[Line]:
    """Yield, line by line, what was looked at: whether it is good, and what was found.

    Args:
        kit_folder: the startup kit of a hospital or of the server.
        job_folder: the job as it would be sent.

    Raises:
        ConfigError, DataError: one of the folders is not what it should be.
    """
    kit, job = Kit.of(kit_folder), read_job(job_folder)
    yield True, f"job: study {job.study}, method {job.method}, {job.settings.rounds} rounds, at {kit.role} {kit.name}"
    yield from _policy(kit, job)
    yield from _versions(job)
    yield from (_server if kit.role == "server" else _site)(kit, job)


def _policy(kit: Kit, job: JobFolder) -> Iterator[Line]:
    if job.has_code:
        yield False, "code: the job ships code (a folder custom/); jobs of `fedskew nvflare job` never do"
    try:
        refused = [text for name in job.classes[kit.role] if (text := kit.refusal(name))]
    except FedSkewError as error:
        yield False, f"policy: {error}"
        return
    for text in refused:
        yield False, f"policy: {text}; `fedskew nvflare site-setup {kit.path} --apply` adds it"
    if not refused:
        yield True, f"policy: {', '.join(job.classes[kit.role])} allowed by local/resources.json"


def _versions(job: JobFolder) -> Iterator[Line]:
    """Messages are read by the version that wrote them; FLARE promises as much for its own minor versions."""
    for package, name in (("monai_fedskew", "monai-fedskew"), ("nvflare", "nvflare")):
        made, here = str(job.versions.get(package)), version(name)
        is_same = made.split(".")[:2] == here.split(".")[:2]
        yield is_same, f"version: job made with {name} {made}, here {here}" + ("" if is_same else "; install the same")


def _server(kit: Kit, job: JobFolder) -> Iterator[Line]:
    from monai_fedskew.federation import checkpoint

    try:
        runs = read_runs_folder(kit.file)
        done = checkpoint.latest(runs / job.study)
    except FedSkewError as error:
        yield False, f"runs: {error}"
        return
    yield is_writable(runs), f"runs: {runs} {'can' if is_writable(runs) else 'cannot'} be written"
    if done is not None:
        yield True, f"runs: study {job.study} has {done} rounds; submit the job with --resume to go on"


def _site(kit: Kit, job: JobFolder) -> Iterator[Line]:
    try:
        file = read_site_file(kit.file, kit.name)
    except FedSkewError as error:
        yield False, f"site file: {error}"
        return
    yield True, f"site file: {kit.file}"
    yield from check_site(file, job.method, job.settings)
