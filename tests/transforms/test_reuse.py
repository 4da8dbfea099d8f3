import pytest
import torch

from monai_fedskew.transforms.reuse import ReusedMemory


def test_memory_is_reused_once_nobody_holds_it() -> None:
    """The loop of a trainer: one result dies before the next is made."""
    memory = ReusedMemory()
    tensor = memory.empty((100, 50), torch.float32)
    address = tensor.data_ptr()
    del tensor

    assert memory.empty((100, 50), torch.float32).data_ptr() == address
    assert memory.empty((20, 50), torch.float64).data_ptr() == address


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[3:],
        lambda tensor: tensor.unbind()[7],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.numpy(),
        lambda tensor: (tensor * torch.ones(50, requires_grad=True)).sum(),  # autograd keeps its input
    ],
    ids=["tensor", "slice", "sample", "detached", "array", "graph"],
)
def test_memory_that_is_held_is_left_alone(keep) -> None:
    """By the tensor, a view of any kind, or a graph."""
    memory = ReusedMemory()
    first = memory.empty((10, 50), torch.float32).fill_(1)
    address, held = first.data_ptr(), keep(first)
    del first

    second = memory.empty((10, 50), torch.float32)

    assert second.data_ptr() != address
    assert held is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_shape_and_type(dtype) -> None:
    """Also nothing at all."""
    memory = ReusedMemory()

    for shape in [(3, 2), (0, 5), (4, 1, 2, 2)]:
        tensor = memory.empty(shape, dtype)
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
