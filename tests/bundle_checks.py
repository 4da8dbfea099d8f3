"""MONAI's own checks of a bundle, with no network connection."""

from pathlib import Path

from monai.bundle import ckpt_export, verify_metadata, verify_net_in_out
from torch import nn

from monai_fedskew.networks import save_weights

SCHEMA = Path(__file__).parent / "bundles" / "meta_schema.json"


def require_monai_checks(configs: Path, network: nn.Module, scratch: Path) -> None:
    """Run verify_metadata, verify_net_in_out on both configurations, and ckpt_export."""
    meta, model = str(configs / "metadata.json"), save_weights(network, scratch / "model.pt")
    verify_metadata(meta_file=meta, filepath=str(SCHEMA))
    for name in ("train", "inference"):
        verify_net_in_out("network_def", meta_file=meta, config_file=str(configs / f"{name}.yaml"), device="cpu")
    ckpt_export(
        "network_def", filepath=str(scratch / "model.ts"), ckpt_file=str(model), meta_file=meta,
        config_file=str(configs / "inference.yaml"),
    )  # fmt: skip
    assert (scratch / "model.ts").is_file()
