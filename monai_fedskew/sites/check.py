"""Look a bundle over before it meets other hospitals."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from monai_fedskew.core.keys import except_modules
from monai_fedskew.errors import ConfigError, FedSkewError
from monai_fedskew.sites.bundle import BundleSite, quiet
from monai_fedskew.sites.scaffold import site_data
from monai_fedskew.sites.site import Site

__all__ = ["BundleReport", "check_bundle"]

_NEEDED = ("LICENSE", "docs/README.md", "configs/metadata.json", "configs/train.yaml", "configs/evaluate.yaml",
           "configs/inference.yaml")  # fmt: skip


@dataclass(frozen=True)
class BundleReport:
    """What was found; a bundle is fit for a federation when ``problems`` is empty.

    Args:
        bundle: its folder.
        facts: name and value of each finding, in reading order.
        shared: keys of the network that FedBN shares.
        private: keys that stay at the site under FedBN.
        problems: what must be mended, one sentence each.
    """

    bundle: Path
    facts: tuple[tuple[str, str], ...]
    shared: tuple[str, ...]
    private: tuple[str, ...]
    problems: tuple[str, ...]


def check_bundle(bundle: Path, data: Path | None = None) -> BundleReport:
    """Open a bundle and see whether it can take part: files, properties, network, batch norm, one network.

    Args:
        bundle: the folder.
        data: a site's prepared folder; without it the network is built and tried on a made-up input, but neither the
            datasets nor the engines are.

    Raises:
        ConfigError: it cannot be opened at all.
        DataError: ``data`` holds no prepared site.
    """
    problems = [f"{name} is missing" for name in _NEEDED if not (bundle / name).is_file()]
    facts: list[tuple[str, str]] = [("folder", str(bundle))]
    if data is None:
        network, batch = _network_alone(bundle)
        facts.append(("site", "none given (--data FOLDER/SITE opens datasets and engines, too)"))
    else:
        site, missing = _opened(bundle, data)
        problems += [f"property {name} is missing or is no @ reference" for name in missing]
        network, batch = site.model, next(iter(site.trainer.data_loader))["image"]
        scored = len(site.evaluator.data_loader.dataset)
        facts += [
            (
                "site",
                f"{site.name}: {site.samples} training samples of {site.groups} subjects, {scored} for validation",
            ),
            ("engines", "trainer and evaluator share one network"),
        ]
    facts.append(("network", f"{type(network).__name__}, {sum(p.numel() for p in network.parameters()):,} parameters"))
    facts.append(("forward pass", f"{tuple(batch.shape)} to {_outputs(network, batch)}"))
    norms = sum(isinstance(module, _BatchNorm) for module in network.modules())
    none = "0: fedbn and silobn have nothing to keep; build the network with batch norm to use them"
    facts.append(("batch norm layers", str(norms) if norms else none))
    shared = except_modules()(network) if norms else frozenset(network.state_dict())
    private = frozenset(network.state_dict()) - shared
    return BundleReport(bundle, tuple(facts), tuple(sorted(shared)), tuple(sorted(private)), tuple(problems))


def _network_alone(bundle: Path) -> tuple[nn.Module, Tensor]:
    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "train.yaml"))
    parser.read_meta(str(bundle / "configs" / "metadata.json"))
    try:
        network: nn.Module = parser.get_parsed_content("network_def")
        inputs: dict[str, Any] = parser["_meta_#network_data_format#inputs#image"]
        shape = (2, int(inputs["num_channels"]), *(int(size) for size in inputs["spatial_shape"]))
    except FedSkewError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"bundle {bundle.name}: network_def or its input in metadata.json: {error}") from error
    return network, torch.zeros(shape)


def _opened(bundle: Path, data: Path) -> tuple[Site, list[str]]:
    folder, manifest = site_data(data, data.absolute().name)
    source = BundleSite(bundle, manifest.site, folder)
    site = source.open()
    with quiet():
        workflow = ConfigWorkflow(
            config_file=[str(path) for path in source.config_files()],
            logging_file=False,
            workflow_type="train",
            bundle_root=str(bundle),
            site=manifest.site,
            dataset_dir=str(folder),
        )
        workflow.initialize()
        return site, list(workflow.check_properties() or [])


def _outputs(network: nn.Module, batch: Tensor) -> tuple[int, ...]:
    was_training = network.training
    network.eval()
    with torch.no_grad():
        output = network(batch)
    network.train(was_training)
    return tuple(output.shape)
