"""What ``amp`` of a bundle's engines means on the device they run on."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from torch import Tensor

from monai_fedskew.errors import ConfigError

__all__ = ["Precision", "set_precision"]


@dataclass(frozen=True)
class Precision:
    """Where training passes run: calling it gives the context of every pass and every loss.

    Args:
        device: kind of device.
        options: of ``torch.autocast``; None leaves everything in float32.
        is_scaled: whether the trainer scales the loss, so that small gradients do not become 0 in float16.

    >>> with Precision("cpu", {})():
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.bfloat16
    """

    device: str
    options: Mapping[str, Any] | None = None
    is_scaled: bool = False

    def __call__(self) -> AbstractContextManager[Any]:
        """Return the context of one pass."""
        return nullcontext() if self.options is None else torch.autocast(self.device, **self.options)


def set_precision(site: str, trainer: SupervisedTrainer, evaluator: SupervisedEvaluator) -> Precision:
    """Make ``amp: true`` hold on the engines' device, and return what extra passes of parts need for the same.

    MONAI's engines know CUDA only: there they are left as they are, with float16 and a scaled loss. On a CPU their
    ``amp`` would do nothing, so inferer and loss are run under torch's autocast for CPUs instead, in bfloat16, which
    has the range of float32 and needs no scaling. Weights, gradients, statistics and messages are float32 either way,
    and so is what an evaluator hands to its metrics.

    Raises:
        ConfigError: ``amp`` is neither true nor false, another kind of device, or a type of numbers that a CPU would
            need scaling for.
    """
    for engine in (evaluator, trainer):
        device = torch.device(engine.state.device).type
        if not isinstance(engine.amp, bool):
            raise ConfigError(f"site {site}: amp is {engine.amp!r}; it must be true or false")
        options = dict(engine.amp_kwargs) if engine.amp else None
        if options is not None:
            _require_known(site, device, options)
        precision = Precision(device, options, is_scaled=bool(engine.amp) and device == "cuda")
        if options is None:
            continue
        engine.amp = precision.is_scaled  # else MONAI would warn in every step that there is no CUDA
        engine.inferer = _Under(precision, engine.inferer, is_single=engine is evaluator)
        if engine is trainer:
            trainer.loss_function = _Under(precision, trainer.loss_function)
    return precision


class _Under:
    """Calls a function under autocast; with ``is_single``, what it returns becomes float32."""

    def __init__(self, precision: Precision, inner: Callable[..., Any], *, is_single: bool = False) -> None:
        self._precision, self._inner, self._is_single = precision, inner, is_single

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._precision():
            output = self._inner(*args, **kwargs)
        return _single(output) if self._is_single else output


def _single(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.float() if output.is_floating_point() and output.element_size() < 4 else output
    if isinstance(output, list | tuple):
        return type(output)(_single(one) for one in output)
    if isinstance(output, dict):
        return {key: _single(one) for key, one in output.items()}
    return output


def _require_known(site: str, device: str, options: Mapping[str, Any]) -> None:
    if device not in ("cpu", "cuda"):
        raise ConfigError(
            f"site {site}: amp: true works on CUDA and on CPUs, not on {device}; set amp: false in the bundle"
        )
    dtype = options.get("dtype", torch.bfloat16)
    if device == "cpu" and dtype is not torch.bfloat16:
        raise ConfigError(
            f"site {site}: on a CPU amp: true computes in bfloat16, and amp_kwargs ask for {dtype}; leave dtype out or "
            "set amp: false in the bundle"
        )
