"""Send plain values and states between the ranks of a process group: bytes in tensors, nothing pickled."""

import json
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from monai_fedskew.core.state import State

__all__ = ["broadcast_state", "gather_states", "gather_values"]


def gather_values(value: Any) -> list[Any]:
    """Return every rank's value, in rank order; values are what JSON can hold.

    All ranks must call it.
    """
    mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = _gather(torch.tensor([len(mine)]))
    longest = max(int(length) for length in lengths)
    padded = torch.cat([mine, mine.new_zeros(longest - len(mine))])
    received = zip(_gather(padded), lengths, strict=True)
    return [json.loads(bytes(buffer[: int(length)].tolist()).decode()) for buffer, length in received]


def gather_states(state: State) -> list[dict[str, Tensor]]:
    """Return every rank's state, in rank order, bit for bit.

    All ranks must call it with the same keys, shapes and dtypes.
    """
    return [_unpack(buffer, state) for buffer in _gather(_pack(state))]


def broadcast_state(state: State) -> dict[str, Tensor]:
    """Return rank 0's state on every rank; conditions as for ``gather_states``."""
    buffer = _pack(state).to(_device())
    dist.broadcast(buffer, src=0)
    return _unpack(buffer.cpu(), state)


def _gather(mine: Tensor) -> list[Tensor]:
    mine = mine.to(_device())
    received = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(received, mine)
    return [buffer.cpu() for buffer in received]


def _device() -> torch.device:
    # nccl moves memory of the GPU only
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _pack(state: State) -> Tensor:
    if not state:
        return torch.empty(0, dtype=torch.uint8)
    return torch.cat([state[key].reshape(-1).view(torch.uint8) for key in sorted(state)])


def _unpack(buffer: Tensor, like: State) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    start = 0
    for key in sorted(like):
        size = math.prod(like[key].shape) * like[key].element_size()
        # clone: a slice may begin where its dtype cannot
        out[key] = buffer[start : start + size].clone().view(like[key].dtype).view(like[key].shape)
        start += size
    return out
