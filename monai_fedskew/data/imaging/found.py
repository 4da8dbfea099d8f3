"""What a folder of images holds: image files, and folders that are DICOM series."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["DICOM", "NIFTI", "PIXELS", "folders_in", "images_in", "is_image", "is_series", "stem"]

PIXELS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
NIFTI = (".nii", ".nii.gz")
DICOM = (".dcm", ".ima")
_MAGIC_AT, _MAGIC = 128, b"DICM"


def is_image(path: Path) -> bool:
    """Tell by its name whether a file is an image.

    >>> is_image(Path("scan.nii.gz")), is_image(Path("notes.txt")), is_image(Path("._scan.nii.gz"))
    (True, False, False)
    """
    return path.name.lower().endswith((*PIXELS, *NIFTI, *DICOM)) and not path.name.startswith(".")


def stem(path: Path) -> str:
    """Return a file's name without the ending that says how it is coded.

    >>> stem(Path("a/scan.01.nii.gz")), stem(Path("b.png")), stem(Path("series_7"))
    ('scan.01', 'b', 'series_7')
    """
    ending = next((ending for ending in (*NIFTI[::-1], *PIXELS, *DICOM) if path.name.lower().endswith(ending)), "")
    return path.name[: len(path.name) - len(ending)]


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, without hidden ones, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_in(folder: Path) -> list[Path]:
    """Return the images directly in a folder, sorted: image files, and folders that are DICOM series."""
    return sorted(path for path in folder.iterdir() if is_image(path) or is_series(path))


def is_series(path: Path) -> bool:
    """Tell whether a folder holds the slices of a DICOM series, by their endings or by their first bytes."""
    if not path.is_dir() or path.name.startswith("."):
        return False
    plain = None
    for inside in _files(path):
        if inside.name.lower().endswith(DICOM):
            return True
        plain = inside if plain is None and not inside.suffix else plain
    return plain is not None and _is_dicom(plain)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))


def _is_dicom(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC
