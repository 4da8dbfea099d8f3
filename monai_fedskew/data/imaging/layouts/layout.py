"""What a layout is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monai_fedskew.data.imaging.source import ImageSource

__all__ = ["Layout"]


def _no_names(root: Path) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Layout:
    """A way in which images of several sites lie on disk.

    Args:
        text: what it looks like, in a line.
        find: returns every image below a folder, or None where the folder has another layout. Images that a list of
            the layout leaves out have no ``split`` where others have one.
        label_names: names of the labels that the layout states, in order; empty where it states none.
        binary_masks: whether masks are one object against background, whatever their values.
        is_guessed: whether ``auto`` tries it.
        note: what somebody who prepares it should know.
    """

    text: str
    find: Callable[[Path], list[ImageSource] | None]
    label_names: Callable[[Path], tuple[str, ...]] = _no_names
    binary_masks: bool = False
    is_guessed: bool = True
    note: str = ""
