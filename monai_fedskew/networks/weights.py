"""A network's weights in one file that holds nothing but tensors."""

from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from monai_fedskew.errors import DataError

__all__ = ["load_weights", "save_weights"]


def save_weights(network: nn.Module, path: str | Path) -> Path:
    """Write the state of ``network`` to ``path``.

    Args:
        network: any module.
        path: ``*.safetensors``, or ``*.pt`` for a plain state dictionary, which ``monai.bundle ckpt_export`` reads.

    Returns:
        The absolute path; parent folders are made.

    Raises:
        DataError: the name ends in neither.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(nn.Linear(2, 1), f"{folder}/model.safetensors").name
        'model.safetensors'
    """
    from safetensors.torch import save_file

    target = _checked(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().clone().contiguous() for name, value in network.state_dict().items()}
    part = target.with_name(target.name + ".part")
    if target.suffix == ".pt":
        torch.save(state, part)
    else:
        save_file(state, part)
    part.replace(target)
    return target


def load_weights(network: nn.Module, path: str | Path) -> nn.Module:
    """Load the file written by `save_weights` into ``network``, key by key; nothing is unpickled.

    Args:
        network: receives the tensors in place.
        path: ``*.safetensors`` or ``*.pt``.

    Returns:
        The same network.

    Raises:
        DataError: no such file, a damaged one, or tensors of another network.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_weights(nn.Linear(2, 1), f"{folder}/model.safetensors")
        ...     load_weights(nn.Linear(2, 1), path)
        Linear(in_features=2, out_features=1, bias=True)
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    source = _checked(path)
    if not source.is_file():
        raise DataError(f"no weights at {source}; train first, or give the file with --model_file")
    try:
        is_pt = source.suffix == ".pt"
        state = torch.load(source, map_location="cpu", weights_only=True) if is_pt else load_file(source)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise DataError(f"{source}: damaged, or no weights alone ({reason}); save them again") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DataError(f"{source}: holds something else than the tensors of one network; save its state_dict")
    wanted = network.state_dict()
    wrong = sorted(wanted.keys() ^ state.keys())
    wrong += sorted(name for name in wanted.keys() & state.keys() if wanted[name].shape != state[name].shape)
    if wrong:
        named = ", ".join(wrong[:5])
        raise DataError(f"{source}: {len(wrong)} tensors do not fit the network ({named}); was it built alike?")
    network.load_state_dict(state)
    return network


def _checked(path: str | Path) -> Path:
    target = Path(path).absolute()
    if target.suffix not in (".safetensors", ".pt"):
        raise DataError(f"{target}: weights are kept in a .safetensors or .pt file")
    return target
