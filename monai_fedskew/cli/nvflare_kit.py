"""A startup kit of FLARE as its owner sets it up: who may be built, and where things lie."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from monai_fedskew.core.json_object import read_object
from monai_fedskew.core.whole_file import write_whole
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Kit", "allow_list_text", "setup"]

_LIST, _FILE, _HINT = "class_allow_list", "fedskew.json", "restore the startup kit"


@dataclass(frozen=True)
class Kit:
    """A startup kit.

    Args:
        path: its folder, which is also FLARE's workspace there.
        role: whose it is.
        name: the name FLARE knows it by.
    """

    path: Path
    role: Literal["server", "site"]
    name: str

    @classmethod
    def of(cls, path: Path) -> "Kit":
        """Look at a folder.

        Raises:
            ConfigError: it is no hospital's and no server's kit.
            DataError: its file is damaged.
        """
        startup = path / "startup"
        if (startup / "fed_server.json").is_file():
            return cls(path.absolute(), "server", "server")
        if (startup / "fed_client.json").is_file():
            file = startup / "fed_client.json"
            client = read_object(file, _HINT).get("client")
            name = client.get("fqsn") if isinstance(client, dict) else None
            if not isinstance(name, str):
                raise DataError(f"{file}: client.fqsn={name!r} must be the site's name; restore the startup kit")
            return cls(path.absolute(), "site", name.rpartition(".")[2])
        what = "an admin's kit" if (startup / "fed_admin.json").is_file() else "no startup kit"
        raise ConfigError(
            f"{path} is {what}: startup/ has neither fed_client.json nor fed_server.json; give a hospital's kit "
            "or the server's"
        )

    @property
    def local(self) -> Path:
        """The folder its owner decides in."""
        return self.path / "local"

    @property
    def file(self) -> Path:
        """Its fedskew.json."""
        return self.local / _FILE

    @property
    def needed(self) -> str:
        """The class our jobs build here."""
        from monai_fedskew.engines.nvflare import CLASSES

        return CLASSES[self.role]

    def refusal(self, class_path: str) -> str | None:
        """Return why local/resources.json refuses a class, in FLARE's own words; None if it is allowed.

        Raises:
            DataError: the file cannot be read.
        """
        from monai_fedskew.engines.nvflare import ComponentPathAuthorizer, UnsafeComponentError, Workspace

        _resources(self)
        try:
            ComponentPathAuthorizer().authorize_component_config(
                {"path": class_path}, workspace=Workspace(str(self.path))
            )
        except UnsafeComponentError as error:
            return str(error).replace(" at config path ''", "")
        return None


def allow_list_text(kit: Kit) -> str:
    """Say what local/resources.json must hold."""
    return f'local/resources.json, "{_LIST}": add "{kit.needed}"'


def setup(kit: Kit, given: Mapping[str, str | Path], *, is_applied: bool) -> list[str]:
    """Make ready for our jobs, or say what is missing.

    Args:
        kit: a hospital's or the server's.
        given: keys of fedskew.json to set: bundle, data, state and prepared_as, or runs.
        is_applied: whether to write.

    Returns:
        What was done, or would be.

    Raises:
        ConfigError: a key that does not belong to this role, or values that cannot be used; nothing is written.
        DataError: a file of the kit cannot be read.
    """
    allowed = ("runs",) if kit.role == "server" else ("bundle", "data", "state", "prepared_as")
    for key in given:
        if key not in allowed:
            option, here = _option(key), ", ".join(map(_option, allowed))
            raise ConfigError(f"{option} does not belong to a {kit.role}; here: {here}")
    resources, is_refused = _resources(kit), kit.refusal(kit.needed) is not None
    content, is_new = _own_file(kit, given)
    steps = []
    if is_refused:
        from monai_fedskew.engines.nvflare import DEFAULT_CLASS_ALLOW_LIST

        # without a list FLARE allows its own classes; a list replaces them
        resources[_LIST] = [*resources.get(_LIST, DEFAULT_CLASS_ALLOW_LIST), kit.needed]
        steps.append(f"{_LIST} lacks {kit.needed}")
        if is_applied:
            steps[-1] = f"{_LIST}: {kit.needed} added{_write_with_backup(kit.local / 'resources.json', resources)}"
    else:
        steps.append(f"{_LIST} allows {kit.needed} already")
    if not is_new:
        steps.append(f"{kit.file} is as it should be")
    elif is_applied:
        _write(kit.file, content)
        steps.append(f"{kit.file} written: {json.dumps(content)}")
    else:
        steps.append(f"{kit.file}: {json.dumps(content)}")
    return steps


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _resources(kit: Kit) -> dict[str, Any]:
    """The content of resources.json, or of the default where the owner has none."""
    own = kit.local / "resources.json"
    path = own if own.is_file() else kit.local / "resources.json.default"
    resources = read_object(path, _HINT)
    listed = resources.get(_LIST, [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise DataError(f"{path}: {_LIST}={listed!r:.60} must be a list of class names; correct it")
    return resources


def _own_file(kit: Kit, given: Mapping[str, str | Path]) -> tuple[dict[str, Any], bool]:
    """The content of fedskew.json, checked as a job would read it, and whether it differs from what is there."""
    from monai_fedskew.sites.locate import list_bundles
    from monai_fedskew.sites.server_file import parse_runs_folder
    from monai_fedskew.sites.site_file import parse_site_file

    if kit.file.is_dir():
        raise ConfigError(f"{kit.file} is a folder; move it away")
    held = read_object(kit.file, _HINT) if kit.file.is_file() else {}
    names = {"prepared_as", *(["bundle"] if str(given.get("bundle")) in list_bundles() else [])}
    values = {key: str(value if key in names else Path(value).absolute()) for key, value in given.items()}
    content = held | values
    if kit.role == "server":
        if "runs" not in content:
            raise ConfigError(f"{kit.file} does not say where runs are kept; give --runs DIR")
        parse_runs_folder(kit.file, content)
        return content, content != held
    content = {"site": kit.name} | content
    missing = [f"--{key}" for key in ("bundle", "data") if key not in content]
    if missing:
        raise ConfigError(f"{kit.file} does not say where this hospital's things lie; give {' and '.join(missing)}")
    parse_site_file(kit.file, content, kit.name)
    return content, content != held


def _write_with_backup(path: Path, content: Mapping[str, Any]) -> str:
    told = ""
    if path.is_file():
        backup = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
        shutil.copy2(path, backup)
        told = f"; as it was: {backup.name}"
    _write(path, content)
    return told


def _write(path: Path, content: Mapping[str, Any]) -> None:
    mode = path.stat().st_mode if path.exists() else None
    write_whole(path, json.dumps(content, indent=2) + "\n")  # a job that starts now reads the old file or the new one
    if mode is not None:
        path.chmod(mode)
