"""Single files for inference."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_images import gradient, picture
from torch.utils.data import DataLoader

from monai_fedskew.data.image_files import ImageFiles
from monai_fedskew.errors import ConfigError, DataError


def test_files_are_served_with_what_predictions_need(tmp_path: Path) -> None:
    """Rows, ids and labels that nobody knows; batches of the shape asked for."""
    files = [picture(tmp_path / f"{name}.png", gradient(seed=k)) for k, name in enumerate("ab")]
    data = ImageFiles(files, shape=(3, 4, 4))
    assert (data.rows.tolist(), data.labels.tolist(), data.subject_ids.tolist()) == ([0, 1], [-1, -1], ["a", "b"])
    batch = next(iter(DataLoader(data, batch_size=2)))["image"]
    assert (batch.shape, batch.dtype) == ((2, 3, 4, 4), torch.float32)
    assert 0 <= batch.min() < batch.max() <= 1
    one = ImageFiles(str(files[1]), shape=[3, 4, 4])
    assert np.array_equal(one[0]["image"], data[1]["image"])


def test_no_file_and_no_shape_are_refused(tmp_path: Path) -> None:
    """An empty path means that --image is missing; a file that is no image is named when it is read."""
    with pytest.raises(ConfigError, match="no image file is named"):
        ImageFiles("", shape=(1, 4, 4))
    with pytest.raises(ConfigError, match=r"shape \[16\]"):
        ImageFiles("a.png", shape=(16,))
    with pytest.raises(DataError, match=r"absent\.png does not exist"):
        ImageFiles(tmp_path / "absent.png", shape=(1, 4, 4))[0]
