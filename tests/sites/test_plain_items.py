"""Items as tensors and JSON, and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Flip
from monai.utils import SpaceKeys

from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.plain_items import from_plain, tensors_of, to_plain


def _there_and_back(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    return from_plain(json.loads(json.dumps(to_plain(value, tensors))), tensors)


def test_plain_values_come_back() -> None:
    """Numbers, texts, None, nesting, and dicts whose keys are our own words."""
    value = {"a": [1, 2.5, (None, True)], "list": {"tensor": "0", "dict": []}, "": ()}
    assert _there_and_back(value) == value
    assert type(_there_and_back({"space": SpaceKeys.RAS})["space"]) is str


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, np.bool_])
def test_arrays_come_back(dtype: Any) -> None:
    """Type, shape and values, for arrays of no dimension too."""
    for array in (np.arange(6).reshape(2, 3).T.astype(dtype), np.array(1, dtype), np.zeros((0, 2), dtype)):
        back = _there_and_back(array)
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_meta_tensors_come_back_and_can_be_inverted() -> None:
    """Affine, meta data and applied operations."""
    image = MetaTensor(torch.arange(6.0).reshape(1, 2, 3), affine=torch.diag(torch.tensor([2.0, 3.0, 1.0, 1.0])))
    image.meta["dim"], image.meta["filename_or_obj"] = np.array([2, 3]), "a.nii"
    flip = Flip(0)
    back = _there_and_back(flip(image))
    assert isinstance(back, MetaTensor)
    assert torch.equal(back.affine, flip(image).affine)
    assert (back.meta["filename_or_obj"], back.meta["dim"].tolist()) == ("a.nii", [2, 3])
    assert torch.equal(flip.inverse(back).as_tensor(), image.as_tensor())


def test_tensors_are_put_aside_once_each() -> None:
    """Two views of one memory become two tensors, as files need."""
    base, tensors = torch.arange(4.0), {}
    to_plain([base[:2], base[1:]], tensors)
    assert [tensor.untyped_storage().nbytes() for tensor in tensors.values()] == [8, 12]
    assert sum(tensor.nbytes for tensor in tensors_of({"a": [base, np.zeros(2)], "b": "c"})) == 32


@pytest.mark.parametrize("odd", [Path("x"), {1: 2}, np.array([None]), object()])
def test_anything_else_is_refused(odd: Any) -> None:
    """The place in the item is named."""
    with pytest.raises(ConfigError, match=r"\['a'\]\[1\]: cache: disk cannot keep a "):
        to_plain({"a": [1, odd]}, {})
