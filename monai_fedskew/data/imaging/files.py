"""The files of a site whose images stay files: where they are named from, copied to, or written anew."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monai_fedskew.data.imaging.examine import Facts, file_digest, read_mask
from monai_fedskew.data.imaging.found import NIFTI
from monai_fedskew.data.imaging.source import ImageSource

__all__ = ["Placed", "place"]


@dataclass(frozen=True)
class Placed:
    """Files of one image as a manifest names them, and the SHA-256 of each."""

    files: tuple[str, ...]
    mask: str
    digests: dict[str, str]


def place(source: ImageSource, facts: Facts, folder: Path, out: Path, *, has_copies: bool, is_binary: bool) -> Placed:
    """Name an image's files, from the site's folder; write those that cannot stay as they are.

    A file below the folder that holds the prepared one is named relative to the site, so that both can move together;
    any other by its absolute path. DICOM series become NIfTI, and masks 0 and 1 where they are to be and are not.

    Args:
        source: the image.
        facts: what was found of it.
        folder: the site's folder, where to write.
        out: what the site's folder will be called.
        has_copies: whether all files are copied.
        is_binary: whether every value above 0 of the mask becomes 1.
    """
    digests: dict[str, str] = {}

    def name(path: Path, digest: str) -> str:
        text = _name(path, folder, out)
        digests[text] = digest
        return text

    files = []
    for number, path in enumerate(source.files):
        kind = "images" if len(source.files) == 1 else f"channel_{number}"  # `a_0` may be another image's name
        if path.is_dir() or path.suffix.lower() in (".dcm", ".ima"):
            from monai_fedskew.data.imaging.dicom import write_nifti

            here = _below(folder, kind, source.id, ".nii.gz")
            write_nifti(path, here)
            files.append(name(here, file_digest(here)))
        elif has_copies:
            here = shutil.copyfile(path, _below(folder, kind, source.id, _ending(path)))
            files.append(name(here, facts.digests[path]))
        else:
            files.append(name(path, facts.digests[path]))
    mask = ""
    if source.mask is not None:
        here, is_new = _mask(source.mask, source.id, facts, folder, has_copies=has_copies, is_binary=is_binary)
        mask = name(here, file_digest(here) if is_new else facts.digests[source.mask])
    return Placed(tuple(files), mask, digests)


def _mask(path: Path, stem: str, facts: Facts, folder: Path, *, has_copies: bool, is_binary: bool) -> tuple[Path, bool]:
    if is_binary and not set(facts.mask_values) <= {0, 1}:
        is_volume = path.name.lower().endswith(NIFTI)
        here = _below(folder, "masks", stem, ".nii.gz" if is_volume else ".png")
        _write_binary(path, here, is_volume=is_volume)
        return here, True
    if has_copies:
        return shutil.copyfile(path, _below(folder, "masks", stem, _ending(path))), False
    return path, False


def _write_binary(path: Path, here: Path, *, is_volume: bool) -> None:
    mask = read_mask(path)
    values = (mask.values[0] > 0).astype(np.uint8)
    if is_volume:
        import nibabel

        nibabel.save(nibabel.Nifti1Image(values, mask.affine), here)
    else:
        from PIL import Image

        Image.fromarray(values).save(here)


def _below(folder: Path, kind: str, stem: str, ending: str) -> Path:
    path = folder / kind / f"{stem}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _ending(path: Path) -> str:
    return next((ending for ending in NIFTI[::-1] if path.name.lower().endswith(ending)), path.suffix)


def _name(path: Path, folder: Path, out: Path) -> str:
    if path.is_relative_to(folder):
        return path.relative_to(folder).as_posix()
    absolute, site = Path(os.path.abspath(path)), Path(os.path.abspath(out))
    if absolute.is_relative_to(site.parent.parent):
        return Path(os.path.relpath(absolute, site)).as_posix()
    return absolute.as_posix()
