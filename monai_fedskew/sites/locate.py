"""Where bundles lie: those shipped with the package, and the one that MONAI's command line was given."""

import ast
import json
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from monai_fedskew.errors import ConfigError

__all__ = ["bundle_of_call", "find_bundle", "list_bundles"]


def list_bundles() -> dict[str, Path]:
    """Return the shipped bundles by name: inside the installed package, or beside it in a source checkout.

    Example:
        >>> "abide_connectome" in list_bundles()
        True
    """
    package = Path(str(files("monai_fedskew")))
    inside, beside = package / "bundles", package.parent / "bundles"
    folder = inside if inside.is_dir() else beside
    return {path.name: path for path in sorted(folder.glob("*")) if _is_bundle(path)}


def find_bundle(name_or_path: str | Path) -> Path:
    """Return the absolute folder of a bundle.

    Args:
        name_or_path: the name of a shipped bundle, or the path of any; a bare name is looked up among the shipped
            ones first, so that the working directory cannot change what it means.

    Raises:
        ConfigError: neither; the known names are listed.

    Example:
        >>> find_bundle("abide_connectome").name
        'abide_connectome'
    """
    known = list_bundles()
    if str(name_or_path) in known:
        return known[str(name_or_path)]
    path = Path(name_or_path).absolute()
    if _is_bundle(path):
        return path
    why = f"{path} has no configs/train.yaml or configs/metadata.json" if path.is_dir() else f"{path} does not exist"
    raise ConfigError(f"bundle {str(name_or_path)!r}: {why}; shipped bundles: {', '.join(known) or 'none'}")


def bundle_of_call(arguments: Sequence[str] | None = None) -> str:
    """Return the folder of the bundle that ``python -m monai.bundle`` was started with.

    MONAI tells a configuration nothing about where it lies, and its working directory may be anywhere, even inside
    another hospital's bundle. The command line does say it, by ``--config_file`` (or the one in ``--args_file``).

    Args:
        arguments: the command line; default ``sys.argv``.

    Raises:
        ConfigError: it names no configuration file.

    Example:
        >>> bundle_of_call(["run", "--config_file", "['/b/nyu/configs/train.yaml', '/b/nyu/configs/site_nyu.yaml']"])
        '/b/nyu'
    """
    words = list(sys.argv if arguments is None else arguments)
    given = _option(words, "config_file")
    if given is None and (defaults := _option(words, "args_file")) is not None:
        given = _from_defaults(Path(defaults))
    if given is None:
        raise ConfigError(
            "bundle_root is not known: opened from Python, a bundle needs the argument bundle_root=FOLDER"
        )
    configs = Path(_first(given)).absolute().parent
    return str(configs.parent if configs.name == "configs" else configs)


def _is_bundle(path: Path) -> bool:
    return all((path / "configs" / name).is_file() for name in ("train.yaml", "metadata.json"))


def _option(words: list[str], name: str) -> str | None:
    for position, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key.lstrip("-").replace("-", "_") == name and key.startswith("--"):
            return value if equals else (words[position + 1] if position + 1 < len(words) else None)
    return None


def _from_defaults(path: Path) -> str | None:
    import yaml

    text = path.read_text(encoding="utf-8")
    content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    value = content.get("config_file")
    return None if value is None else str(value)


def _first(given: str) -> str:
    """Read ``a``, ``a,b`` or ``['a', 'b']``, which are the forms MONAI takes."""
    if given.lstrip().startswith(("[", "(")):
        try:
            return str(ast.literal_eval(given)[0])
        except (ValueError, SyntaxError):  # [a, b] without quotes, as a shell leaves it
            return given.strip(" [()]").split(",")[0].strip(" '\"")
    return given if Path(given).is_file() else given.split(",")[0]
