"""What the exported forms of a normalisation share: reading their numbers, and applying them to a prepared batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from monai_fedskew.errors import DataError

__all__ = ["change_inputs", "read_entries"]


def read_entries(file: str | Path, names: set[str], what: str) -> dict[str, Tensor]:
    """Read a site's safetensors file.

    Args:
        file: the file.
        names: the entries it must have.
        what: what it holds, for the error.

    Raises:
        DataError: the file is absent or lacks an entry.
    """
    if not Path(file).is_file():
        raise DataError(f"{file}: no such file; it holds the {what} the model was trained with")
    tensors: dict[str, Tensor] = load_file(str(file))
    if lacks := sorted(names - set(tensors)):
        raise DataError(f"{file}: lacks {' and '.join(lacks)}; export the site again")
    return tensors


def change_inputs(prepared: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return what ``prepare_batch`` gave, inputs alone or inputs first, with the inputs changed.

    >>> import torch
    >>> change_inputs((torch.ones(1), "target"), torch.neg)
    (tensor([-1.]), 'target')
    """
    if isinstance(prepared, Tensor):
        return change(prepared)
    inputs, *rest = prepared
    return (change(inputs), *rest)
