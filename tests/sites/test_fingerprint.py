"""The name of a chain of transforms: equal for equal chains in any process, another for any difference."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Lambda, Lambdad, LoadImage, MapTransform, ScaleIntensity, Spacingd
from monai.utils import SpaceKeys

from monai_fedskew.data.pictures import read_mask, read_picture
from monai_fedskew.errors import ConfigError
from monai_fedskew.sites import fingerprint as module
from monai_fedskew.sites.fingerprint import fingerprint


class Add(MapTransform):
    """Add something of any kind."""

    def __init__(self, what: Any) -> None:
        super().__init__("image")
        self.what = what

    def __call__(self, data: Any) -> Any:
        """Do nothing: it is only looked at."""
        return data


def _adds(number: float) -> Callable[[Any], Any]:
    return lambda image: image + number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Add(1), Add(2)),
        (Add(1), Add(1.0)),
        (Add(True), Add(1)),
        (Add("1"), Add(1)),
        (Add([1, 2]), Add((1, 2))),
        (Add([[1], 2]), Add([[1, 2]])),
        (Add({"a": 1}), Add({"a": 2})),
        (Add(np.zeros(3)), Add(np.array([0, 0, 1e-9]))),
        (Add(torch.zeros(3)), Add(torch.zeros(1, 3))),
        (Add(torch.zeros(3)), Add(torch.zeros(3, dtype=torch.float64))),
        (Add(Add(1)), Add(Add(2))),
        (ScaleIntensity(0, 1), ScaleIntensity(0, 1, channel_wise=True)),
        (Spacingd("image", [1.0, 1.0, 3.0]), Spacingd("image", [1.0, 1.0, 2.0])),
        (Lambda(lambda image: image + 1), Lambda(lambda image: image + 2)),
        (Lambda(_adds(1)), Lambda(_adds(2))),
        (Lambdad("image", np.abs), Lambdad("image", np.sqrt)),
    ],
)
def test_any_difference_counts(one: Any, other: Any) -> None:
    """A value, its type, its nesting, the body of a function, what it closes over, the order."""
    assert fingerprint([one]) == fingerprint([one])
    assert fingerprint([one]) != fingerprint([other])
    assert fingerprint([one, other]) != fingerprint([other, one])


_CLASS = """
FACTOR = {0}
class Own:
    table = [{1}]
    @staticmethod
    def fixed(x): return x + {2}
    @classmethod
    def of_class(cls, x): return x + {3}
    @property
    def value(self): return {4}
    def __call__(self, x): return (lambda y: y * FACTOR)(x)
"""


def _own(*numbers: int) -> Any:
    names: dict[str, Any] = {"__name__": "own"}
    exec(_CLASS.format(*numbers), names)  # one class, its source changed between two processes
    return names["Own"]()


@pytest.mark.parametrize("changed", range(5))
def test_all_code_of_a_class_counts(changed: int) -> None:
    """A global that only an inner function reads, a list, a static and a class method, a property."""
    numbers = [1] * 5
    assert fingerprint([_own(*numbers)]) == fingerprint([_own(*numbers)])
    numbers[changed] = 2
    assert fingerprint([_own(*numbers)]) != fingerprint([_own(1, 1, 1, 1, 1)])


def test_our_own_readers_can_be_told() -> None:
    """All that they call is of our own code, which no version tells of, and differs between the two."""
    picture, mask = (fingerprint([Lambdad("image", function)]) for function in (read_picture, read_mask))
    assert len(picture) == 64
    assert picture != mask


def test_equal_chains_have_one_name() -> None:
    """Made anew, with lists shared or not, with a set, with itself inside: the same."""
    shared = [1, 2]
    assert fingerprint([Add([shared, shared])]) == fingerprint([Add([[1, 2], [1, 2]])])
    assert fingerprint([Add({"b", "a", "c"})]) == fingerprint([Add({"c", "b", "a"})])
    assert fingerprint([Lambda(_adds(1))]) == fingerprint([Lambda(_adds(1))])
    rings = [Add(None), Add(None)]
    for ring in rings:
        ring.what = [ring]
    assert fingerprint(rings[:1]) == fingerprint(rings[1:])


def test_use_does_not_change_it(tmp_path: Any) -> None:
    """MONAI's readers note which file they read last."""
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))
    load = LoadImage(reader="NumpyReader", image_only=True)
    before = fingerprint([load])
    load(str(tmp_path / "a.npy"))
    assert fingerprint([load]) == before


def test_other_processes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of plain content is a constant: neither seeds of hashes nor numbers of memory are in it."""
    monkeypatch.setattr(module, "_versions", dict)
    content: Any = [{"a", "b", "c"}, np.arange(3), torch.ones(2), (None, 1.5), slice(2), {"b": SpaceKeys.RAS, "a": 1}]
    assert fingerprint(content)[:16] == "79f6e231764391ab"


def test_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another MONAI may compute something else from the same parameters."""
    before = fingerprint([ScaleIntensity()])
    versions = module._versions()
    assert sorted(versions) == ["monai", "nibabel", "numpy", "pillow", "torch"]
    monkeypatch.setattr(module, "_versions", lambda: {**versions, "monai": "1.6.2"})
    assert fingerprint([ScaleIntensity()]) != before


def test_what_cannot_be_told_is_refused() -> None:
    """The transform and where in it are named."""
    with pytest.raises(ConfigError, match=r"transform Add\.\['what'\]\[1\]: builtins\.generator has no state"):
        fingerprint([Add([0, (k for k in range(3))])])
