"""Clean examples as batches."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from monai_fedskew.sites import examples
from monai_fedskew.sites.examples import stacked


class _Whole:
    """Four images of two pixels that come as whole batches."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 4

    def __getitems__(self, index: Sequence[int]) -> dict[str, Tensor]:
        self.asked.append(len(index))
        return {"image": torch.tensor([[float(k), 0.0] for k in index])}


def test_neighbours_of_one_size_share_a_batch() -> None:
    """The order of the dataset stays, whatever the sizes; labels go with their images."""
    widths = [2, 2, 3, 2]
    data = [{"image": torch.full((1, w), float(k)), "label": torch.tensor(k)} for k, w in enumerate(widths)]
    batches = list(stacked(data, ("image", "label")))
    assert [tuple(images.shape) for images, _ in batches] == [(2, 1, 2), (1, 1, 3), (1, 1, 2)]
    assert [labels.tolist() for _, labels in batches] == [[0, 1], [2], [3]]
    assert [images[:, 0, 0].tolist() for images, _ in batches] == [[0.0, 1.0], [2.0], [3.0]]


@pytest.mark.parametrize(("values", "sizes"), [(4, [2, 2]), (5, [2, 2]), (1, [1, 1, 1, 1]), (6, [3, 1])])
def test_memory_is_bounded_by_values(values: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume larger than the bound comes alone; whole batches are asked for in the same portions."""
    monkeypatch.setattr(examples, "_VALUES", values)
    single = [{"image": torch.zeros(2)} for _ in range(4)]
    assert [len(images) for (images,) in stacked(single, ("image",))] == sizes
    whole = _Whole()
    assert [len(images) for (images,) in stacked(whole, ("image",))] == sizes
    assert max(whole.asked) == max(sizes)
