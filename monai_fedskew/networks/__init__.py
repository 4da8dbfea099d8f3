"""Networks of the shipped bundles."""

from monai_fedskew.networks.connectome_mlp import ConnectomeMLP
from monai_fedskew.networks.weights import load_weights, save_weights

__all__ = ["ConnectomeMLP", "load_weights", "save_weights"]
