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
    """Return the loss in the form that takes ``soft_labels``.

    PyTorch's cross-entropy takes both forms itself. MONAI's Dice and its kin (``to_onehot_y=True``) turn indices into
    one-hot masks first, which is left out in a copy.
    """
    converts = [
        name
        for name, module in (loss_function.named_modules() if isinstance(loss_function, nn.Module) else ())
        if getattr(module, "to_onehot_y", False)
    ]
    if not converts or not isinstance(loss_function, nn.Module):
        return loss_function
    soft = copy.deepcopy(loss_function)
    for name in converts:
        soft.get_submodule(name).to_onehot_y = False  # type: ignore[assignment]  # a plain attribute of MONAI's losses
    return soft


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
            "shares, so averaged labels would be weighed otherwise. PyTorch's cross-entropy does so with class weights "
            "or ignored labels; leave these out"
        )
