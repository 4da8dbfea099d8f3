"""DomainNet (Peng et al. 2019): six domains, 345 classes, with lists of training and test images beside them."""

from dataclasses import replace
from pathlib import Path

from monai_fedskew.data.imaging.found import folders_in
from monai_fedskew.data.imaging.layouts.folders import of_site
from monai_fedskew.data.imaging.source import ImageSource, SplitOfList
from monai_fedskew.errors import DataError

__all__ = ["TEN_CLASSES", "find_domainnet", "find_domainnet10"]

_DOMAINS = frozenset({"clipart", "infograph", "painting", "quickdraw", "real", "sketch"})
# the classes with most images, on which FedBN (section 5.2) measures
TEN_CLASSES = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
_PLACES = (".", "DomainNet", "domainnet")


def find_domainnet(root: Path) -> list[ImageSource] | None:
    """Find ``DOMAIN/CLASS/image``, at least two of the six domains.

    ``DOMAIN_train.txt`` and ``DOMAIN_test.txt`` (lines ``DOMAIN/CLASS/image NUMBER``), in the folder or in a folder
    ``splits``, give the split; images in neither have none.

    Raises:
        DataError: a line without its image, or only one list of a domain.
    """
    for place in _PLACES:
        above = root / place
        domains = [path for path in folders_in(above) if path.name in _DOMAINS] if above.is_dir() else []
        if len(domains) > 1:
            return [source for path in domains for source in _domain(path)]
    return None


def find_domainnet10(root: Path) -> list[ImageSource] | None:
    """Find the images of ten of the classes."""
    found = find_domainnet(root)
    return found and [source for source in found if source.label in TEN_CLASSES]


def _domain(folder: Path) -> list[ImageSource]:
    found = of_site(folder)
    lists = {split: _list(folder, split) for split in ("train", "test")}
    if not any(lists.values()):
        return found
    names = {source.files[0].relative_to(folder.parent).as_posix() for source in found}
    split: dict[str, SplitOfList] = {}
    for word, path in lists.items():
        if path is None:
            raise DataError(
                f"site {folder.name}: {folder.name}_{word}.txt is missing beside the other list; get it too"
            )
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            name = text.rpartition(" ")[0].strip()
            if name and name not in names:
                raise DataError(f"{path}, line {line}: {name} does not exist in {folder.parent}; get the image")
            split[name] = "train" if word == "train" else "test"
    return [replace(one, split=split.get(one.files[0].relative_to(folder.parent).as_posix(), "")) for one in found]


def _list(folder: Path, split: str) -> Path | None:
    name = f"{folder.name}_{split}.txt"
    return next((path for path in (folder.parent / name, folder.parent / "splits" / name) if path.is_file()), None)
