"""What preparation of images is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monai_fedskew.errors import ConfigError

__all__ = ["Options", "StoreOfImages", "require_range"]

StoreOfImages = Literal["auto", "vectors", "files"]
_LARGEST = 3.4e38  # about what float32 holds


@dataclass(frozen=True)
class Options:
    """What `prepare_images` is asked for.

    Args:
        layout: a name in ``LAYOUTS``, or ``auto``.
        table: CSV that says where each image belongs; None for none.
        splits: CSV of a given list of splits; None for the layout's own, if it has one.
        has_lists: whether lists that come with a layout are used; False deals folds.
        sites: only these; empty for all.
        classes: only these; empty for all.
        subject_pattern: regular expression whose first group in an image's name is its subject; empty for none.
        size: spatial size of rows; None keeps the images' own.
        channels: of rows, 1 or 3; None keeps the images' own.
        value_range: what black and white of picture formats become in rows.
        store: ``vectors`` (rows of one array), ``files`` (images stay files), or ``auto``.
        has_copies: whether files are copied into the prepared folder.
        binary_masks: whether every value above 0 of a mask becomes 1; None as the layout has it.
        label_names: names of the classes in order, or of the values of masks from 0; empty as they are found.
        skips_unreadable: whether unreadable files are left out instead of ending the call.

    Raises:
        ConfigError: options that cannot go together.
    """

    layout: str = "auto"
    table: Path | None = None
    splits: Path | None = None
    has_lists: bool = True
    sites: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    subject_pattern: str = ""
    size: tuple[int, ...] | None = None
    channels: int | None = None
    value_range: tuple[float, float] = (0.0, 1.0)
    store: StoreOfImages = "auto"
    has_copies: bool = False
    binary_masks: bool | None = None
    label_names: tuple[str, ...] = ()
    skips_unreadable: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot go together."""
        if self.size is not None and (len(self.size) not in (2, 3) or min(self.size) < 1):
            raise ConfigError(f"--size {'x'.join(map(str, self.size))}: give HxW or HxWxD, each at least 1")
        require_range(self.value_range)
        if self.table is not None and self.layout not in ("auto", "table"):
            raise ConfigError(f"--labels {self.table} says where images belong, and so does --layout {self.layout}")
        if self.store == "files":
            for name, value in (("--size", self.size), ("--channels", self.channels)):
                if value is not None:
                    raise ConfigError(f"{name} changes images, --store files leaves them; transforms do it there")
        if self.has_copies and (self.store == "vectors" or self.size or self.channels):
            raise ConfigError("--copy is for images that stay files; as rows the prepared folder holds them anyway")
        twice = next((name for name in self.label_names if self.label_names.count(name) > 1), None)
        if "" in self.label_names:
            raise ConfigError(f"--label-names {','.join(self.label_names)}: a name is empty; give each label one")
        if twice is not None:
            raise ConfigError(f"--label-names has {twice!r} twice; each label needs a name of its own")

    def notes(self, layout: str, store: str) -> dict[str, str]:
        """Return the options in words, for a manifest; ``layout`` and ``store`` are those that were chosen."""
        named = {
            "layout": layout,
            "labels": "" if self.table is None else self.table.name,
            "splits": self.splits.name if self.splits else ("of the layout" if self.has_lists else "none"),
            "classes": ", ".join(self.classes),
            "subject pattern": self.subject_pattern,
            "size": "x".join(map(str, self.size or ())),
            "channels": str(self.channels or ""),
            "range": _comma(self.value_range) if store == "vectors" else "",
            "binary masks": {True: "yes", False: "no", None: ""}[self.binary_masks],
            "copied": "yes" if self.has_copies else "",
            "unreadable": "left out" if self.skips_unreadable else "",
        }
        return {key: value for key, value in named.items() if value}


def require_range(value_range: Sequence[float]) -> None:
    """Refuse a range that is none, or whose rows would hold numbers that are not finite.

    Raises:
        ConfigError: not finite in float32, or not from low to high.

    Example:
        >>> require_range((-1.0, 1.0))
    """
    if not all(abs(value) <= _LARGEST / 2 for value in value_range):
        raise ConfigError(f"--range {_comma(value_range)}: give two finite numbers, such as 0,1")
    if value_range[0] >= value_range[1]:
        raise ConfigError(f"--range {_comma(value_range)}: the first must be lower than the second")


def _comma(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
