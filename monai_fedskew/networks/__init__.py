"""Networks of the shipped bundles."""

from monai_fedskew.networks.alexnet_bn import AlexNetBN
from monai_fedskew.networks.connectome_mlp import ConnectomeMLP
from monai_fedskew.networks.digits_cnn import DigitsCNN
from monai_fedskew.networks.weights import load_weights, save_weights

__all__ = ["AlexNetBN", "ConnectomeMLP", "DigitsCNN", "load_weights", "save_weights"]
