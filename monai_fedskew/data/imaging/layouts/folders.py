"""Labels by folder: SITE/CLASS/image, with a folder of the split above and of the subject below the class if any."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from monai_fedskew.data.imaging.found import folders_in, images_in, is_image, is_series, stem
from monai_fedskew.data.imaging.source import ImageSource, SplitOfList
from monai_fedskew.errors import DataError

__all__ = ["find_folders", "of_site", "split_names"]

split_names: Mapping[str, SplitOfList] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def find_folders(root: Path) -> list[ImageSource] | None:
    """Find ``SITE/CLASS/image``.

    Also ``SITE/train|val|test/CLASS/image``, which gives the split, and ``SITE/CLASS/SUBJECT/image``, where no split
    may cut a subject. A folder of DICOM files below a class is one image, a series.
    """
    sites = [folder for folder in folders_in(root) if _has_classes(folder)]
    return [source for site in sites for source in of_site(site)] or None


def of_site(folder: Path, name: str | None = None) -> list[ImageSource]:
    """Find the images of one site's folder.

    Raises:
        DataError: images that lie in no class, or folders of splits beside folders of classes.
    """
    loose = next((path for path in sorted(folder.iterdir()) if is_image(path)), None)
    if loose is not None:
        raise DataError(
            f"site {folder.name}: {loose} lies in no class; SITE/CLASS/image is read here, or give --labels CSV, or "
            "masks (see `fedskew images layouts`)"
        )
    inside = folders_in(folder)
    splits = [path for path in inside if path.name.lower() in split_names]
    if splits and len(splits) < len(inside):
        other = next(path for path in inside if path not in splits)
        raise DataError(f"site {folder.name}: {other} lies beside {splits[0].name}; only folders of splits may")
    found = []
    for above in splits or [folder]:
        split: SplitOfList = split_names[above.name.lower()] if splits else ""
        for label in folders_in(above):
            for image, subject in _members(label):
                place = image.relative_to(folder)
                found.append(
                    ImageSource(
                        site=name or folder.name,
                        id=(place.parent / stem(image)).as_posix(),
                        files=(image,),
                        label=label.name,
                        group=subject,
                        split=split,
                    )
                )
    return found


def _members(label: Path) -> Iterator[tuple[Path, str]]:
    """Yield the images of a class, each with its subject; empty where the image stands alone."""
    yield from ((image, "") for image in images_in(label))
    for subject in folders_in(label):
        if not is_series(subject):
            yield from ((image, subject.name) for image in images_in(subject))


def _has_classes(folder: Path) -> bool:
    inside = folders_in(folder)
    deeper = [label for above in inside for label in folders_in(above)]
    return any(images_in(path) for path in (*inside, *deeper))
