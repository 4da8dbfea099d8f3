"""What the scores of a site mean: which names are counts, and which scores fall as a model gets better."""

__all__ = ["is_better_low", "is_count", "is_share"]

_COUNTS = ("_undefined", "_in_mm", "_sites")
_SHARES = ("accuracy", "balanced_accuracy", "auc", "dice")
_LOW = ("hausdorff95",)


def is_count(name: str) -> bool:
    """Tell whether a score says of how many something holds, so that no mean over sites is taken of it.

    Example:
        >>> [name for name in ("dice", "dice_undefined", "samples") if is_count(name)]
        ['dice_undefined', 'samples']
    """
    return name == "samples" or name.endswith(_COUNTS)


def is_share(name: str) -> bool:
    """Tell whether a score is a share from 0 to 1, which is shown in percent.

    Example:
        >>> is_share("dice"), is_share("hausdorff95")
        (True, False)
    """
    return name in _SHARES


def is_better_low(name: str) -> bool:
    """Tell whether lower is better: so it is of distances.

    Example:
        >>> is_better_low("hausdorff95"), is_better_low("accuracy")
        (True, False)
    """
    return name in _LOW
