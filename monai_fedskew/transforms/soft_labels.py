"""Labels that are shares of classes, and a loss that takes them: what averaged labels stand on."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from monai_fedskew.errors import ConfigError

__all__ = ["require_soft_labels", "soft_form", "soft_labels"]

Loss = Callable[..., Tensor]


def soft_labels(labels: Tensor, pred: Tensor, *, what: str) -> Tensor:
    """Return labels in the shape of a prediction: one-hot for class indices, unchanged where the shapes agree already.

    Args:
        labels: (B,), (B, *spatial) or (B, 1, *spatial) class indices; or of the shape of ``pred``: regression, labels
            of several classes at once, masks that are one-hot already.
        pred: (B, C, *spatial) output of the network for this batch.
        what: opens the error messages: site and method.

    Raises:
        ConfigError: the shapes do not fit, or an index is no class of the network.

    >>> soft_labels(torch.tensor([1]), torch.zeros(1, 3), what="site A").tolist()
    [[0.0, 1.0, 0.0]]
    """
    if labels.shape == pred.shape:
        return labels.float()
    index = labels[:, 0] if labels.ndim == pred.ndim and labels.shape[1] == 1 else labels
    if pred.ndim < 2 or index.shape != (len(pred), *pred.shape[2:]):
        raise ConfigError(
            f"{what}: labels of shape {tuple(labels.shape)} are no class indices for a prediction of shape "
            f"{tuple(pred.shape)}, nor of that shape; they cannot be averaged"
        )
    n_classes, low, high = pred.shape[1], int(index.min()), int(index.max())
    if low < 0 or high >= n_classes:
        raise ConfigError(
            f"{what}: labels from {low} to {high}, but the network has {n_classes} outputs; labels that are ignored "
            "cannot be averaged"
        )
    return nn.functional.one_hot(index.long(), n_classes).movedim(-1, 1).float()


def soft_form(loss_function: Loss) -> Loss:
    """Return the loss in the form that takes ``soft_labels`` and has the same value on one-hot labels.

    PyTorch's cross-entropy takes both forms itself, but with class weights divides by the number of samples where it
    divided by the sum of their weights; the form returned divides by the sum of the weights of the shares. MONAI's Dice
    and its kin (``to_onehot_y=True``) turn indices into one-hot masks first, which is left out in a copy.
    """
    if not isinstance(loss_function, nn.Module):
        return loss_function
    if _is_weighted(loss_function):
        return _WeightedShares(loss_function)
    named = list(loss_function.named_modules())
    if not any(_is_weighted(module) or getattr(module, "to_onehot_y", False) for _, module in named):
        return loss_function
    soft = copy.deepcopy(loss_function)
    for name, module in named:
        if getattr(module, "to_onehot_y", False):
            soft.get_submodule(name).to_onehot_y = False  # type: ignore[assignment]  # a plain attribute of MONAI's
        if _is_weighted(module):
            parent, _, own = name.rpartition(".")
            setattr(soft.get_submodule(parent), own, _WeightedShares(module))
    return soft


class _WeightedShares(nn.Module):
    """Cross-entropy with class weights: sum_i sum_c w_c y_ic l_ic over sum_i sum_c w_c y_ic."""

    def __init__(self, loss_function: nn.Module) -> None:
        super().__init__()
        self.total = copy.deepcopy(loss_function)
        self.total.reduction = "sum"  # type: ignore[assignment]  # a plain attribute of the loss

    def forward(self, pred: Tensor, shares: Tensor) -> Tensor:
        weight: Tensor = self.total.weight.view(1, -1, *[1] * (pred.ndim - 2))  # type: ignore[operator]  # a buffer
        total: Tensor = self.total(pred, shares)
        return total / (weight * shares).sum()


def _is_weighted(module: nn.Module) -> bool:
    return isinstance(module, nn.CrossEntropyLoss) and module.weight is not None and module.reduction == "mean"


def require_soft_labels(loss_function: Loss, pred: Tensor, labels: Tensor, *, what: str) -> None:
    """Refuse a loss that means another thing by one-hot labels than by the class indices they stand for.

    Args:
        loss_function: the bundle's.
        pred: (B, C, *spatial).
        labels: of these, as the bundle gives them.
        what: opens the error message: site and method.

    Raises:
        ConfigError: the loss takes no soft labels, or has another value with them.
    """
    name = getattr(loss_function, "__name__", type(loss_function).__name__)
    hard = loss_function(pred, labels).mean()
    try:
        soft = soft_form(loss_function)(pred, soft_labels(labels, pred, what=what)).mean()
    except ConfigError:
        raise
    except Exception as error:  # whatever a loss says of labels it does not know
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{what} needs a loss that takes averaged labels, which {name} does not ({type(error).__name__}: "
            f"{reason}); cross-entropy and MONAI's Dice losses do"
        ) from error
    if not torch.isclose(soft, hard, rtol=1e-3, atol=1e-5):
        raise ConfigError(
            f"{what}: {name} is {float(hard):.6g} on labels and {float(soft):.6g} on the same labels as one-hot "
            "shares, so averaged labels would be weighed otherwise; use cross-entropy or one of MONAI's Dice losses"
        )
