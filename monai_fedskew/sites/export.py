"""What a site takes home: a bundle folder that runs alone with MONAI and gives the federation's own predictions."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save_file

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Deployment, Part
from monai_fedskew.core.state import State
from monai_fedskew.sites.bundle import BundleSite

__all__ = ["export_bundle"]

logger = logging.getLogger(__name__)
_MODEL, _INPUTS = "model.safetensors", "normalisation.safetensors"


def export_bundle(
    source: BundleSite,
    folder: Path,
    *,
    model: State,
    method: Method,
    seed: int,
    deployments: Mapping[str, Deployment],
) -> None:
    """Write weights, inference configuration and the normalisation in force.

    Args:
        source: the site's bundle; its ``configs/inference.yaml`` is the base when there is one.
        folder: where to write; other files there are left alone.
        model: all entries of the network, shared and private.
        method: what it was trained with; its parts may have changed the network.
        seed: the seed of the run.
        deployments: what the parts need at inference, by part.
    """
    configs = folder / "configs"
    configs.mkdir(parents=True, exist_ok=True)
    save_file(dict(model), folder / _MODEL)
    for name in ("LICENSE", "scripts"):
        origin = source.bundle / name
        if origin.is_dir():
            shutil.copytree(origin, folder / name, dirs_exist_ok=True)
        elif origin.is_file():
            shutil.copy(origin, folder / name)
    for name in ("metadata.json", "logging.conf"):
        if (source.bundle / "configs" / name).is_file():
            shutil.copy(source.bundle / "configs" / name, configs / name)
    for deployment in deployments.values():
        save_file(dict(deployment.tensors), folder / _INPUTS)
    base = source.bundle / "configs" / "inference.yaml"
    if not base.is_file():
        logger.warning(
            "site %s: bundle %s has no configs/inference.yaml; the weights in %s need one to run alone",
            source.site,
            source.bundle.name,
            folder,
        )
        return
    config = _settled(source, yaml.safe_load(base.read_text()))
    if any(type(part).adapt is not Part.adapt for part in method.parts):
        inner = config["network_def"]
        target = "monai_fedskew.methods.adapted.adapted_network"
        config["network_def"] = {"_target_": target, "network": inner, "method": method.name, "seed": seed}
    for deployment in deployments.values():
        file = f"$@bundle_root + '/{_INPUTS}'"
        config["evaluator#prepare_batch"] = {"_target_": deployment.target, "file": file}
    (folder / "README.md").write_text(_README.format(site=source.site, bundle=source.bundle.name, method=method.name))
    about = f"# {method.name}, seed {seed}, site {source.site}"
    command = "# python -m monai.bundle run --config_file configs/inference.yaml"
    (configs / "inference.yaml").write_text(
        f"{about}\n{command}\n" + yaml.safe_dump(config, sort_keys=False, width=120)
    )


_README = """# {bundle} at {site}, trained with {method}

`python -m monai.bundle run --config_file configs/inference.yaml` predicts the test data and writes
`output/predictions.csv`, equal to the `predictions.csv` here. On another machine add `--dataset_dir FOLDER`, the site's
prepared data there; `--split all` predicts all of it. monai_fedskew must be installed.
"""


def _settled(source: BundleSite, config: dict[str, Any]) -> dict[str, Any]:
    """The inference configuration with what was decided for this site and run, as far as it has the ids."""
    overlay = source.bundle / "configs" / f"site_{source.site.lower()}.yaml"
    decided: dict[str, Any] = dict(yaml.safe_load(overlay.read_text())) if overlay.is_file() else {}
    decided["site"] = source.site
    if source.data is not None:
        decided["dataset_dir"] = str(source.data.resolve())
    decided |= dict(source.overrides)
    config |= {key: value for key, value in decided.items() if key.split("#")[0] in config}
    config["output_dir"] = "$@bundle_root + '/output'"
    return config
