"""Job folders of FLARE: written, read, and made to go on."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.federation.settings import Settings

__all__ = ["JobFolder", "read_job", "require_study", "with_resume", "write_job"]

_SERVER, _SITE = "config_fed_server.json", "config_fed_client.json"


@dataclass(frozen=True)
class JobFolder:
    """What a job would run.

    Args:
        path: the folder.
        study: its name.
        method: as text.
        settings: the same at all sites.
        versions: packages the job was made with.
        classes: per role, the classes it would build there.
        has_code: whether it ships code.
    """

    path: Path
    study: str
    method: str
    settings: Settings
    versions: Mapping[str, str]
    classes: Mapping[str, tuple[str, ...]]
    has_code: bool


def require_study(option: str, study: str, method: str) -> None:
    """Check what no job may be made of, before anything is written or replaced.

    Args:
        option: where the name comes from.
        study: the name, also of a folder.
        method: as text.

    Raises:
        ConfigError: an unknown method, one that sends no messages, or a name that cannot be a folder.
    """
    from monai_fedskew.core.private import require_folder_name
    from monai_fedskew.federation.study import require_federated
    from monai_fedskew.methods import parse_method

    require_folder_name(option, study)
    require_federated(parse_method(method))


def write_job(
    study: str, method: str, settings: Settings, *, task_timeout: int, resume: bool, out: Path, force: bool = False
) -> None:
    """Write a job folder.

    Raises:
        ConfigError: see ``require_study``, or ``out`` exists.
        DataError: ``force``, and ``out`` is no job.
    """
    from monai_fedskew.engines.nvflare import job

    require_study("--study", study, method)
    if out.exists():
        if not force:
            raise ConfigError(f"--out {out} exists; choose another folder or replace it with --force")
        read_job(out)  # nothing but a job of ours is ever removed
    out.parent.mkdir(parents=True, exist_ok=True)
    made = job(study, method, settings, task_timeout=task_timeout, resume=resume)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        made.export_job(folder)
        if out.exists():
            shutil.rmtree(out)
        (Path(folder) / study).rename(out)


def read_job(path: Path) -> JobFolder:
    """Read a job folder as ``write_job`` leaves it.

    Raises:
        DataError: it is none.
    """
    try:
        meta = json.loads((path / "meta.json").read_text())
        (app,) = meta["deploy_map"]
        server, site = (json.loads((path / app / "config" / name).read_text()) for name in (_SERVER, _SITE))
        args, theirs = site["executors"][0]["executor"]["args"], server["workflows"][0]["args"]
        for name in ("study", "method", "settings"):
            if args[name] != theirs[name]:
                raise ValueError(f"{name} is {theirs[name]!r:.60} for the server and {args[name]!r:.60} for the sites")
        require_study("study", args["study"], args["method"])
        if not isinstance(meta["fedskew"], dict):
            raise TypeError(f"fedskew={meta['fedskew']!r:.60} in meta.json")
        return JobFolder(
            path,
            args["study"],
            args["method"],
            Settings(**args["settings"]),
            meta["fedskew"],
            {"server": tuple(_classes(server)), "site": tuple(_classes(site))},
            any(folder.name == "custom" for folder in path.rglob("*")),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is no job that `fedskew nvflare job` wrote ({type(error).__name__}: {error}); write one"
        ) from error


def with_resume(job: Path, folder: Path) -> Path:
    """Copy a job into ``folder`` under its study's name, told to go on after the last committed round."""
    read = read_job(job)
    copied = folder / read.study
    shutil.copytree(job, copied)
    (app,) = json.loads((copied / "meta.json").read_text())["deploy_map"]
    path = copied / app / "config" / _SERVER
    config = json.loads(path.read_text())
    config["workflows"][0]["args"]["resume"] = True
    path.write_text(json.dumps(config, indent=4))
    return copied


def _classes(config: Any) -> list[str]:
    """All components of a configuration, at any depth."""
    if isinstance(config, list):
        return [name for inner in config for name in _classes(inner)]
    if not isinstance(config, dict):
        return []
    own = [config[key] for key in ("path", "class_path") if isinstance(config.get(key), str)]
    return own + [name for inner in config.values() for name in _classes(inner)]
