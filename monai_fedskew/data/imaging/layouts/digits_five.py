"""Digits-five (FedBN's benchmark): MNIST, MNIST-M, SVHN, SynthDigits, USPS, as pictures in folders of classes."""

from pathlib import Path

from monai_fedskew.data.imaging.found import folders_in, images_in
from monai_fedskew.data.imaging.layouts.folders import of_site
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import DataError

__all__ = ["find_digits_five"]

_DOMAINS = frozenset({"mnist", "mnistm", "svhn", "synthdigits", "syn", "synth", "usps"})
_ARRAYS = (".pkl", ".pickle", ".mat", ".npz")


def find_digits_five(root: Path) -> list[ImageSource] | None:
    """Find at least two of the five sources, each as ``SOURCE/CLASS/image`` or ``SOURCE/train|test/CLASS/image``.

    Raises:
        DataError: a source that holds FedBN's pickles, or arrays, instead of pictures.
    """
    sources = [path for path in folders_in(root) if path.name.lower().replace("_", "").replace("-", "") in _DOMAINS]
    if len(sources) < 2:
        return None
    for folder in sources:
        packed = next((path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _ARRAYS), None)
        if packed is not None and not any(images_in(label) for label in folder.rglob("*") if label.is_dir()):
            raise DataError(
                f"site {folder.name}: {packed} is not opened: a pickle can run code, and arrays have no names. Where "
                f"you trust it, save its images as {folder.name}/train/CLASS/N.png and {folder.name}/test/CLASS/N.png"
            )
    return [source for folder in sources for source in of_site(folder)]
