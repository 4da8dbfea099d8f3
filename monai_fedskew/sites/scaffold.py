"""A hospital's own bundle: a copy of a shipped one with a single site's settings."""

import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from monai_fedskew.data.manifest import MANIFEST, SiteManifest, read_manifest, site_folders
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.locate import find_bundle

__all__ = ["copy_bundle", "new_bundle", "site_data"]

_NEVER_COPIED = ("__pycache__", "data", "output", "models", "site_*.yaml", "*.safetensors", "*.pt", "*.ts")


def new_bundle(name: str, *, site: str, data: Path, out: Path, force: bool = False) -> Path:
    """Write one hospital's self-contained bundle: it can be moved, and runs with MONAI alone.

    Args:
        name: a shipped bundle, or the path of any.
        site: the hospital's name, as in its prepared data.
        data: the site's prepared folder, or the folder of several sites. Data that lie inside ``out`` are named
            relative to the bundle, so that both can be moved together; others by their absolute path.
        out: the folder to write.
        force: replace the bundle's own files in a folder that exists; other files there stay.

    Returns:
        The absolute folder.

    Raises:
        ConfigError: no such bundle, or ``out`` holds something and ``force`` is not given.
        DataError: no prepared data, or none of that site.

    Example:
        >>> import tempfile
        >>> from monai_fedskew.data.synthetic import write_synthetic_study
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = write_synthetic_study(f"{folder}/data", sites=("EAST",))
        ...     out = new_bundle("abide_connectome", site="EAST", data=data, out=Path(folder, "east"))
        ...     sorted(p.name for p in (out / "configs").glob("site_*"))
        ['site_east.yaml']
    """
    bundle, target = find_bundle(name), Path(out).absolute()
    folder, manifest = site_data(Path(data), site)
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not force:
        raise ConfigError(f"{target} exists and is not empty; choose another --out, or --force to replace its bundle")
    overlay = _overlay(bundle, manifest, folder, target)
    copy_bundle(bundle, target)
    _write_overlay(target / "configs" / f"site_{site.lower()}.yaml", overlay)
    _write_readme(target / "README.md", site, bundle.name)
    return target


def copy_bundle(bundle: Path, target: Path) -> Path:
    """Copy a bundle's files without site overlays, data, weights and outputs; files of the same name are replaced."""
    ignore = shutil.ignore_patterns(*_NEVER_COPIED)
    shutil.copytree(bundle, target, ignore=ignore, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return target


def site_data(data: Path, site: str) -> tuple[Path, SiteManifest]:
    """Find a site's prepared folder: ``data`` itself or one folder below it.

    Raises:
        DataError: nothing prepared there, or not that site; the sites that are there are named.
    """
    data = data.absolute()
    folder = data if (data / MANIFEST).is_file() else site_folders(data).get(site)
    if folder is None:
        known = list(site_folders(data))
        raise DataError(
            f"site {site!r}: not among the prepared sites of {data}: {', '.join(known)}; give {data / known[0]}, say"
        )
    manifest = read_manifest(folder)
    if manifest.site != site:
        raise DataError(f"site {site!r}: {folder} holds site {manifest.site!r}; give its name, or the other folder")
    return folder, manifest


def _overlay(bundle: Path, manifest: SiteManifest, folder: Path, target: Path) -> dict[str, Any]:
    shipped = bundle / "configs" / f"site_{manifest.site.lower()}.yaml"
    values: dict[str, Any] = yaml.safe_load(shipped.read_text(encoding="utf-8")) if shipped.is_file() else {}
    real, inside = Path(os.path.realpath(folder)), Path(os.path.realpath(target))
    is_inside = real.is_relative_to(inside)
    where = f"$@bundle_root + '/{real.relative_to(inside).as_posix()}'" if is_inside else str(folder)
    values |= {
        "site": manifest.site,
        "dataset_dir": where,
        "output_dir": "$@bundle_root + '/output'",
        "model_file": "$@bundle_root + '/model.safetensors'",
    }
    train = yaml.safe_load((bundle / "configs" / "train.yaml").read_text(encoding="utf-8"))
    if "in_features" in train and train["in_features"] != manifest.n_features:
        values["in_features"] = manifest.n_features
    return values


def _write_overlay(path: Path, values: dict[str, Any]) -> None:
    header = "# What differs at this site; on the command line --dataset_dir says where its prepared data lie.\n"
    path.write_text(header + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000), encoding="utf-8")


def _write_readme(path: Path, site: str, bundle: str) -> None:
    overlay = f"configs/site_{site.lower()}.yaml"

    def call(*configs: str) -> str:
        listed = ",".join(f"'configs/{name}'" for name in configs)
        return f"    python -m monai.bundle run --config_file \"[{listed},'{overlay}']\"\n"

    path.write_text(
        f"# {bundle} at {site}\n\n"
        f"Made from the bundle `{bundle}` of monai_fedskew; `{overlay}` holds what differs here.\n"
        "Paths inside are relative to this folder, whatever the working directory. From this folder:\n\n"
        f"Train alone (writes model.safetensors):\n\n{call('train.yaml')}\n"
        f"Score the model on the test subjects:\n\n{call('train.yaml', 'evaluate.yaml')}\n"
        f"Write output/predictions.csv:\n\n{call('inference.yaml')}",
        encoding="utf-8",
    )
