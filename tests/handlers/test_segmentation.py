"""SegmentationWriter: scores by hand, any batch, 2-D and 3-D, and nothing half-written."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import MetaTensor, decollate_batch, list_data_collate

from monai_fedskew.data.segmentations import read_examples, read_segmentations
from monai_fedskew.errors import StateError
from monai_fedskew.handlers import SegmentationWriter
from monai_fedskew.handlers.segmentation import dice_and_hausdorff


def _data(count: int) -> SimpleNamespace:
    return SimpleNamespace(rows=np.arange(count) + 5, subject_ids=np.array([f"s{k}" for k in range(count)]))


def _images(count: int, size: tuple[int, ...] = (12, 10), *, classes: int = 3) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(count, classes, *size, generator=random)
    label = torch.randint(0, classes, (count, 1, *size), generator=random)
    return {"image": torch.rand(count, 3, *size, generator=random), "label": label, "pred": logits}


def _run(path: Path, batches: list[Any], count: int, **options: Any) -> Path:
    engine = Engine(lambda _, batch: batch)
    SegmentationWriter(path, _data(count), **options).attach(engine)
    engine.run(batches)
    return path


def _square(size: int, rows: slice, columns: slice) -> torch.Tensor:
    mask = torch.zeros(size, size, dtype=torch.long)
    mask[rows, columns] = 1
    return mask


def test_dice_by_hand() -> None:
    """Truth 4 x 4 = 16 pixels, prediction 4 x 6 = 24, of which 16 are shared: 2 * 16 / (16 + 24) = 0.8."""
    truth, predicted = _square(12, slice(2, 6), slice(2, 6)), _square(12, slice(2, 6), slice(2, 8))
    assert dice_and_hausdorff(predicted, truth, classes=2)[0][0] == pytest.approx(0.8)


@pytest.mark.parametrize(("spacing", "expected"), [(None, 3.0), ((1.0, 0.5), 1.5), ((0.5, 1.0), 3.0)])
def test_hausdorff_by_hand(spacing: tuple[float, float] | None, expected: float) -> None:
    """A square moved by three columns: the far edge is 3 pixels off on both sides; 3 pixels of 0.5 mm are 1.5 mm."""
    truth, predicted = _square(20, slice(4, 10), slice(4, 10)), _square(20, slice(4, 10), slice(7, 13))
    assert dice_and_hausdorff(predicted, truth, classes=2, spacing=spacing)[0][1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("in_truth", "in_prediction", "dice"), [(False, False, math.nan), (True, False, 0.0), (False, True, 0.0)]
)
def test_what_is_empty_has_no_distance(in_truth: bool, in_prediction: bool, dice: float) -> None:
    """Both empty: neither score is defined; one empty: Dice is 0, and there is no distance, without a warning."""
    full, empty = torch.ones(4, 4, dtype=torch.long), torch.zeros(4, 4, dtype=torch.long)
    found = dice_and_hausdorff(full if in_prediction else empty, full if in_truth else empty, classes=2)
    np.testing.assert_equal(found, [(dice, math.nan)])


@pytest.mark.parametrize("form", ["one by one", "batches", "lists"])
def test_the_table_does_not_depend_on_the_batches(form: str, tmp_path: Path) -> None:
    """Five images at once, in batches or decollated give the same lines, one an image and foreground class."""
    images = _images(5)
    whole = _run(tmp_path / "whole.csv", [images], 5)
    cut = {"one by one": (1, 1, 1, 1, 1), "batches": (3, 2), "lists": (2, 3)}[form]
    batches: list[Any] = [
        dict(zip(images, part, strict=True)) for part in zip(*(v.split(cut) for v in images.values()), strict=True)
    ]
    batches = [decollate_batch(batch) for batch in batches] if form == "lists" else batches
    assert _run(tmp_path / "other.csv", batches, 5).read_text() == whole.read_text()
    table = read_segmentations(whole)
    assert [tuple(line) for line in table[["subject", "row", "class"]].to_numpy()[:3]] == [
        ("s0", 5, "1"),
        ("s0", 5, "2"),
        ("s1", 6, "1"),
    ]
    assert len(table) == 10


def test_the_table_agrees_with_the_function(tmp_path: Path) -> None:
    """Each line is the score of that image's most probable class."""
    images = _images(2)
    table = read_segmentations(_run(tmp_path / "a.csv", [images], 2))
    expected = [
        score
        for k in range(2)
        for score in dice_and_hausdorff(images["pred"][k].argmax(0), images["label"][k, 0], classes=3)
    ]
    np.testing.assert_allclose(table[["dice", "hausdorff95"]], expected, atol=1e-6)


def test_one_channel_is_a_foreground(tmp_path: Path) -> None:
    """A logit above zero is the foreground, as with two channels of which the first is zero."""
    images = _images(2, classes=2)
    one = {**images, "pred": images["pred"][:, 1:]}
    two = {**images, "pred": torch.cat([torch.zeros(2, 1, 12, 10), one["pred"]], 1)}
    names = ("background", "nucleus")
    first = _run(tmp_path / "one.csv", [one], 2, label_names=names).read_text()
    assert first == _run(tmp_path / "two.csv", [two], 2, label_names=names).read_text()
    assert ",nucleus," in first


def test_the_spacing_of_an_image_is_used_where_it_has_one(tmp_path: Path) -> None:
    """A NIfTI's label carries its voxel size; that of a PNG says nothing, whatever a resize made of its affine."""
    affine = torch.diag(torch.tensor([3.0, 0.5, 1.0, 1.0], dtype=torch.float64))
    images = decollate_batch(_images(2, classes=2))
    units = []
    for meta in ({"original_affine": affine}, {"format": "PNG"}):
        labels = [MetaTensor(one["label"].float(), affine=affine, meta=dict(meta)) for one in images]
        batch = list_data_collate([{**one, "label": label} for one, label in zip(images, labels, strict=True)])
        table = read_segmentations(_run(tmp_path / "a.csv", [batch], 2))
        units.append(table["unit"].unique().tolist())
        spacing = (3.0, 0.5) if units[-1] == ["mm"] else None
        truth, predicted = images[0]["label"][0], images[0]["pred"].argmax(0)
        expected = dice_and_hausdorff(predicted, truth, classes=2, spacing=spacing)[0][1]
        assert table["hausdorff95"][0] == pytest.approx(expected, abs=1e-6)
    assert units == [["mm"], ["pixel"]]
    assert read_segmentations(_run(tmp_path / "b.csv", [images], 2, spacing=(2.0, 2.0)))["unit"][0] == "mm"


def test_at_most_four_examples_evenly_spread(tmp_path: Path) -> None:
    """Of nine images 0, 3, 5 and 8; coloured ones keep their colours, long sides are thinned to 512."""
    _run(tmp_path / "segmentation.csv", [_images(9)], 9)
    examples = read_examples(tmp_path / "examples.npz")
    assert list(examples) == ["s0", "s3", "s5", "s8"]
    assert {key: plane.shape for key, plane in examples["s3"].items()} == {
        "image": (12, 10, 3),
        "truth": (12, 10),
        "prediction": (12, 10),
    }
    _run(tmp_path / "segmentation.csv", [_images(1, (1030, 8))], 1)
    assert read_examples(tmp_path / "examples.npz")["s0"]["truth"].shape == (344, 3)


def test_the_example_of_a_volume_is_the_slice_with_most_truth(tmp_path: Path) -> None:
    """The third slice holds two voxels of truth, the first one; the picture shows the body upright."""
    images = {key: value * 0 for key, value in _images(1, (4, 5, 3), classes=2).items()}
    images["label"][0, 0, 0, 0, 0] = 1
    images["label"][0, 0, 0, 1:3, 2] = 1
    _run(tmp_path / "segmentation.csv", [images], 1)
    truth = read_examples(tmp_path / "examples.npz")["s0"]["truth"]
    assert truth.shape == (5, 4)
    assert [tuple(place) for place in np.argwhere(truth)] == [(2, 0), (3, 0)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": torch.full((1, 1, 12, 10), 255)},
            r"image s0: label values 255 to 255 must be whole numbers in 0 to 2",
        ),
        ({"label": torch.zeros(1, 1, 12, 9)}, r"label of shape \(1, 12, 9\), prediction \(3, 12, 10\)"),
        ({"pred": torch.full((1, 3, 12, 10), torch.nan)}, "not finite"),
        ({"pred": torch.zeros(1, 4, 12, 10)}, "4 classes are predicted, label names are"),
    ],
)
def test_what_does_not_fit_is_one_error(change: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    """The image is named, and nothing is written."""
    with pytest.raises(StateError, match=message):
        _run(tmp_path / "segmentation.csv", [{**_images(1), **change}], 1, label_names=("none", "a", "b"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [2, 4])
def test_another_number_of_images_is_refused(count: int, tmp_path: Path) -> None:
    """Fewer or more than the dataset holds write nothing."""
    with pytest.raises(StateError, match=rf"3 images were predicted, the dataset holds {count}"):
        _run(tmp_path / "segmentation.csv", [_images(3)], count)
    assert not list(tmp_path.iterdir())
