"""The predicted mask of one picture as a picture, and its outline drawn on the image."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from numpy.typing import NDArray
from torch import Tensor

from monai_fedskew.errors import DataError, StateError
from monai_fedskew.handlers.eight_bits import eight_bits

__all__ = ["MaskPictures", "outline"]

# of class 1, 2, ...: easy to tell apart on grey and on purple stain, also for the colour-blind (Okabe and Ito 2008)
_COLOURS = ((240, 228, 66), (0, 158, 115), (86, 180, 233), (230, 159, 0), (204, 121, 167), (0, 114, 178), (213, 94, 0))


class MaskPictures:
    """Write ``<name>_mask.png`` and ``<name>_overlay.png`` for the one image of an evaluator.

    The mask has the size of the image. Its pixels are class numbers, with a palette that gives each class a colour in
    viewers: PIL, MONAI and ImageJ read the numbers. The overlay is the image, stretched from its 0.5 to its 99.5
    percentile, with the outline of each class.

    Args:
        image: the file that is predicted.
        folder: where the pictures go; made if absent, pictures of the same names are replaced.

    Raises:
        DataError: there is no such file.
        StateError: when the prediction is not finite or of another size than the image.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (3, 3)).save(f"{folder}/cell.png")
        ...     writer = MaskPictures(f"{folder}/cell.png", folder)
        ...     mask, _ = writer.write(torch.zeros(3, 3, 3), torch.stack([torch.ones(3, 3), 2 * torch.eye(3)]))
        ...     mask.name, np.asarray(Image.open(mask)).tolist()
        ('cell_mask.png', [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    """

    def __init__(self, image: str | Path, folder: str | Path) -> None:
        self.image, self.folder = Path(image), Path(folder)
        if not self.image.is_file():
            raise DataError(f"--image {self.image.absolute()}: no such file")

    def attach(self, engine: Engine) -> None:
        """Listen to an evaluator of this one image, whose output holds ``pred`` (1, classes, height, width)."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._on_image)

    def _on_image(self, engine: Engine) -> None:
        # of the batch, not of the output: a site's normalisation has changed that
        self.write(engine.state.batch["image"][0], engine.state.output["pred"][0])

    def write(self, image: Tensor, logits: Tensor) -> tuple[Path, Path]:
        """Write mask and overlay of an image (1 or 3, height, width) with logits (classes, height, width)."""
        from PIL import Image

        if logits.shape[1:] != image.shape[1:] or not bool(torch.isfinite(logits).all()):
            raise StateError(
                f"{self.image}: prediction of shape {tuple(logits.shape)} for an image of {tuple(image.shape)}; it "
                "must be finite and of the same size"
            )
        classes = logits.argmax(0).cpu().numpy().astype(np.uint8)
        mask = Image.fromarray(classes)
        mask.putpalette([value for colour in _palette() for value in colour])
        grey_or_colours = np.moveaxis(eight_bits(image.detach().cpu().numpy().astype(np.float32)), 0, -1)
        overlay = np.array(np.broadcast_to(grey_or_colours, (*classes.shape, 3)))
        edges = outline(classes)
        overlay[edges] = np.array(_palette(), np.uint8)[classes[edges]]
        return self._save("mask", mask), self._save("overlay", Image.fromarray(overlay))

    def _save(self, what: str, picture: Any) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"{self.image.stem}_{what}.png"
        part = target.with_name(f".{os.getpid()}-{target.name}")
        picture.save(part, format="PNG")
        part.replace(target)
        return target


def outline(classes: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return the pixels of the foreground, shape (height, width), that touch a pixel of another class.

    Example:
        >>> square = np.zeros((5, 5), np.uint8); square[1:4, 1:4] = 1
        >>> outline(square).astype(int)[2].tolist()
        [0, 1, 0, 1, 0]
    """
    framed = np.pad(classes, 1, mode="edge")
    height, width = classes.shape
    shifts = ((0, 1), (2, 1), (1, 0), (1, 2))
    differs = [framed[y : y + height, x : x + width] != classes for y, x in shifts]
    edges: NDArray[np.bool_] = np.logical_or.reduce(differs) & (classes > 0)
    return edges


def _palette() -> list[tuple[int, int, int]]:
    return [(0, 0, 0), *(_COLOURS[number % len(_COLOURS)] for number in range(255))]
