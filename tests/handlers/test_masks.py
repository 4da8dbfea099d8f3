"""The mask of one picture and its outline."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from PIL import Image

from monai_fedskew.errors import DataError, StateError
from monai_fedskew.handlers.masks import MaskPictures, outline


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A dim picture of 5 x 7, brighter to the right."""
    path = tmp_path / "cell.one.tif"
    Image.fromarray(np.tile(np.arange(7, dtype=np.uint8), (5, 1))).save(path)
    return path


def logits_of(classes: torch.Tensor) -> torch.Tensor:
    """Logits whose largest is each pixel's class."""
    return torch.nn.functional.one_hot(classes, 3).movedim(-1, 0).float()


def test_mask_and_overlay_come_from_a_run(picture: Path, tmp_path: Path) -> None:
    """The mask holds the class numbers; the overlay stretches the image and colours edges only."""
    classes = torch.zeros(5, 7, dtype=torch.long)
    classes[1:4, 2:5] = 1
    classes[0, 6] = 2
    image = torch.arange(7.0).expand(1, 3, 5, 7) / 255
    engine = Engine(lambda engine, batch: {"image": batch["image"] * 1e9, "pred": logits_of(classes)[None]})
    MaskPictures(picture, tmp_path / "out").attach(engine)
    engine.run([{"image": image}])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cell.one_mask.png", "cell.one_overlay.png"]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "cell.one_mask.png")), classes.numpy())
    shown = np.asarray(Image.open(tmp_path / "out" / "cell.one_overlay.png"))
    assert shown.shape == (5, 7, 3)
    assert shown[2, 0].tolist() == [0, 0, 0]  # the darkest is black
    assert shown[4, 6].tolist() == [255, 255, 255]
    assert shown[1, 2].tolist() == [240, 228, 66]  # an edge of class 1
    assert len(set(shown[2, 3].tolist())) == 1  # its middle stays grey
    assert shown[0, 6].tolist() == [0, 158, 115]


def test_outline_parts_classes_that_touch() -> None:
    """Pixels at the border of the image are no edge; those beside another class are, the background's never."""
    classes = np.array([[1, 1, 1, 2, 2, 0]])
    assert outline(classes).tolist() == [[False, False, True, True, True, False]]


def test_what_cannot_be_drawn_is_refused(picture: Path, tmp_path: Path) -> None:
    """No file, a prediction of another size, and one that is not finite."""
    with pytest.raises(DataError, match=r"absent.png: no such file"):
        MaskPictures(tmp_path / "absent.png", tmp_path)
    writer = MaskPictures(picture, tmp_path / "out")
    image = torch.zeros(3, 5, 7)
    with pytest.raises(StateError, match="of the same size"):
        writer.write(image, torch.zeros(2, 7, 5))
    with pytest.raises(StateError, match="must be finite"):
        writer.write(image, torch.full((2, 5, 7), torch.nan))
    assert not (tmp_path / "out").exists()
