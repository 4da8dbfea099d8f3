"""Test scores of a segmentation as a table, and a few slices to look at."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from ignite.engine import Engine, Events
from numpy.typing import NDArray
from torch import Tensor

from monai_fedskew.errors import StateError
from monai_fedskew.handlers.eight_bits import eight_bits

__all__ = ["NamedImages", "SegmentationWriter", "dice_and_hausdorff"]

_EXAMPLES = 4
_LONGEST = 512  # pixels a side of an example
_IN_MM = {"pixdim", "spacing", "original_affine"}  # what MONAI's readers note of images with a voxel size


class NamedImages(Protocol):
    """A dataset that knows its images: arrays of shape (n,) in the dataset's own order."""

    rows: NDArray[np.int64]

    @property
    def subject_ids(self) -> NDArray[np.str_]:
        """Id of the subject of each image."""


def dice_and_hausdorff(
    predicted: Tensor, truth: Tensor, *, classes: int, spacing: Sequence[float] | None = None
) -> list[tuple[float, float]]:
    """Score one image by MONAI's Dice and 95th percentile Hausdorff distance, for each foreground class.

    Dice is NaN where a class is in neither map, 0 where it is in one of them; the distance is NaN in both cases.

    Args:
        predicted: class numbers, shape (*spatial).
        truth: class numbers, shape (*spatial).
        classes: number of classes, background included.
        spacing: of the voxels along each axis, in mm; None counts pixels.

    Returns:
        (dice, distance) of class 1, 2, ...

    Example:
        >>> truth, predicted = torch.tensor([[0, 1, 1, 0]]), torch.tensor([[0, 1, 0, 0]])
        >>> [(dice, distance)] = dice_and_hausdorff(predicted, truth, classes=2, spacing=(1.0, 3.0))
        >>> round(dice, 4), round(distance, 4)  # 2 * 1 / (1 + 2); 95 % of the way from 0 to 3 mm
        (0.6667, 2.85)
    """
    from monai.metrics import compute_dice, compute_hausdorff_distance

    scores = []
    for number in range(1, classes):
        one, other = ((array == number)[None, None] for array in (predicted, truth))
        has = bool(one.any()), bool(other.any())
        dice, distance = math.nan, math.nan
        if any(has):
            dice = float(compute_dice(one, other, ignore_empty=False))
        if all(has):
            edges = compute_hausdorff_distance(one, other, include_background=True, percentile=95, spacing=spacing)
            distance = float(edges)
        scores.append((dice, distance))
    return scores


class SegmentationWriter:
    """Score each image of an evaluator, and write the table and a few slices when it has completed.

    The table has the columns ``subject,row,class,dice,hausdorff95,unit``, one line an image and foreground class, with
    an empty cell where a score is not defined. Beside it lies ``examples.npz``: of at most four images, evenly spread
    over the dataset, the slice with the largest truth, as uint8. Distances are in mm where an image has a voxel size
    (``spacing``, or that of the label as a MONAI MetaTensor read from NIfTI or DICOM), else in pixels of the label.

    Args:
        path: the table; parent folders are made, an existing file is replaced.
        dataset: the dataset of the evaluator's loader, which must keep its order (no shuffling).
        label_names: of the classes, background first; by default class numbers are written.
        spacing: of the voxels along each axis, in mm; by default that of each image.

    Raises:
        StateError: a prediction that is not finite or does not fit its label, a label that is no class, or another
            number of images than the dataset holds.

    Example:
        >>> import tempfile, types
        >>> data = types.SimpleNamespace(rows=np.array([7]), subject_ids=np.array(["a"]))
        >>> image = {"pred": torch.tensor([[[[-1.0, 1.0]]]]), "label": torch.tensor([[[[0, 1]]]])}
        >>> engine = Engine(lambda engine, batch: batch)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     SegmentationWriter(f"{folder}/segmentation.csv", data, ("background", "nucleus")).attach(engine)
        ...     _ = engine.run([image])
        ...     print(Path(folder, "segmentation.csv").read_text().splitlines()[1])
        a,7,nucleus,1.000000,0.000000,pixel
    """

    def __init__(
        self,
        path: str | Path,
        dataset: NamedImages,
        label_names: Sequence[str] = (),
        *,
        spacing: Sequence[float] | None = None,
    ) -> None:
        self.path = Path(path)
        self.dataset = dataset
        self.label_names = tuple(label_names)
        self.spacing = spacing
        self._start()

    def attach(self, engine: Engine) -> None:
        """Listen to an evaluator whose output holds ``pred`` and ``label``, batched or as a list of images."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._collect)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _start(self) -> None:
        self._lines: list[list[Any]] = []
        self._examples: list[tuple[str, dict[str, NDArray[np.uint8]]]] = []
        self._seen = 0
        count = len(self.dataset.rows)
        self._shown = set(np.linspace(0, count - 1, min(count, _EXAMPLES)).round().astype(int).tolist())

    def _collect(self, engine: Engine) -> None:
        output = engine.state.output
        for one in output if isinstance(output, list) else _images(output):
            if self._seen < len(self.dataset.rows):
                self._score(one)
            self._seen += 1

    def _score(self, one: dict[str, Any]) -> None:
        subject, row = str(self.dataset.subject_ids[self._seen]), int(self.dataset.rows[self._seen])
        where = f"{self.path.name}, image {subject}"
        spacing = self.spacing or _spacing(one["label"])
        logits, label = (_plain(one[key]) for key in ("pred", "label"))
        classes = max(2, len(logits))
        if self.label_names and len(self.label_names) != classes:
            raise StateError(f"{where}: {classes} classes are predicted, label names are {list(self.label_names)}")
        if label.shape != (1, *logits.shape[1:]):
            raise StateError(
                f"{where}: label of shape {tuple(label.shape)}, prediction {tuple(logits.shape)}; (1, ...)"
            )
        if not bool(logits.isfinite().all()):
            raise StateError(f"{where}: the prediction is not finite; look at the model's training")
        predicted = (logits[0] > 0) if len(logits) == 1 else logits.argmax(0)
        truth = label[0].round().long().cpu()
        if bool((truth != label[0].cpu()).any()) or int(truth.min()) < 0 or int(truth.max()) >= classes:
            seen = f"{float(label.min()):g} to {float(label.max()):g}"
            raise StateError(f"{where}: label values {seen} must be whole numbers in 0 to {classes - 1}")
        predicted = predicted.long().cpu()
        unit = "pixel" if spacing is None else "mm"
        for number, scores in enumerate(dice_and_hausdorff(predicted, truth, classes=classes, spacing=spacing), 1):
            name = self.label_names[number] if self.label_names else str(number)
            self._lines.append([subject, row, name, *("" if math.isnan(v) else f"{v:.6f}" for v in scores), unit])
        if self._seen in self._shown and "image" in one:
            self._examples.append((subject, _example(_plain(one["image"]), truth, predicted)))

    def _write(self) -> None:
        if self._seen != len(self.dataset.rows):
            raise StateError(
                f"{self.path}: {self._seen} images were predicted, the dataset holds {len(self.dataset.rows)}"
            )
        target = self.path.absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._examples:
            _write_examples(target.with_name("examples.npz"), self._examples)
        part = target.with_name(target.name + ".part")
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["subject", "row", "class", "dice", "hausdorff95", "unit"])
            writer.writerows(self._lines)
        part.replace(target)
        self._start()


def _images(output: dict[str, Any]) -> list[dict[str, Any]]:
    """Take a batch apart; MONAI's decollation gives each image its own meta data."""
    from monai.data import decollate_batch

    found: list[dict[str, Any]] = decollate_batch(
        {key: output[key] for key in ("image", "label", "pred") if key in output}
    )
    return found


def _spacing(label: Tensor) -> tuple[float, ...] | None:
    """Voxel size of a label, in mm; None where its file says nothing of it, as PNG or JPEG."""
    meta = getattr(label, "meta", {})
    if not _IN_MM & set(meta):
        return None
    return tuple(float(value) for value in label.pixdim)  # type: ignore[attr-defined]  # of a MetaTensor


def _plain(values: Tensor) -> Tensor:
    """Drop the meta data, which every operation would carry along."""
    tensor: Tensor = values.as_tensor() if hasattr(values, "as_tensor") else values
    return tensor.detach()


def _example(image: Tensor, truth: Tensor, predicted: Tensor) -> dict[str, NDArray[np.uint8]]:
    """Cut the slice with the largest truth out of a volume, (H, W) or (H, W, 3), at most 512 pixels a side."""
    values = image if len(image) == 3 else image[:1]
    if truth.ndim == 3:  # the last axis of MONAI's volumes goes from foot to head, the one before to the front
        best = int((truth > 0).flatten(0, 1).sum(0).argmax())
        values, truth, predicted = (torch.rot90(a[..., best], 1, (-2, -1)) for a in (values, truth, predicted))
    step = -(-max(truth.shape) // _LONGEST)
    values, truth, predicted = (array[..., ::step, ::step] for array in (values, truth, predicted))
    scaled = eight_bits(values.float().cpu().numpy())
    shown = np.moveaxis(scaled, 0, -1) if len(scaled) == 3 else scaled[0]
    planes = {"image": shown, "truth": truth.numpy(), "prediction": predicted.numpy()}
    return {key: np.ascontiguousarray(plane.astype(np.uint8)) for key, plane in planes.items()}


def _write_examples(target: Path, examples: Sequence[tuple[str, dict[str, NDArray[np.uint8]]]]) -> None:
    planes: dict[str, Any] = {f"{key}_{k}": plane for k, (_, one) in enumerate(examples) for key, plane in one.items()}
    part = target.with_name(target.name + ".part")
    with part.open("wb") as file:
        np.savez_compressed(file, subjects=np.array([name for name, _ in examples], np.str_), **planes)
    part.replace(target)
