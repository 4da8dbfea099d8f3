"""What a server may hear of an error at a site."""

from monai_fedskew.errors import DataError, FedSkewError

__all__ = ["what_may_cross"]

_SHOWN = 300  # characters


def what_may_cross(error: BaseException) -> str:
    r"""Return one line about an error that may leave the site.

    Our own errors speak of keys, shapes, rounds and settings, which the server knows anyway; but one about data may
    name subjects, one with a path the hospital's folders, and one with a foreign cause quotes what nobody has looked
    at. Of these, and of every foreign error, only the type crosses.

    Args:
        error: as it was caught at the site.

    Example:
        >>> from monai_fedskew.errors import StateError
        >>> what_may_cross(StateError("broadcast lacks 1 shared key (fc.weight)"))
        'StateError: broadcast lacks 1 shared key (fc.weight)'
        >>> what_may_cross(ValueError("subject 0051456 has no label"))
        "ValueError; the site's own log says more"
    """
    chain: list[BaseException] = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    text = " ".join(str(error).split())[:_SHOWN]
    is_ours = all(isinstance(part, FedSkewError) and not isinstance(part, DataError) for part in chain)
    if is_ours and "/" not in text and "\\" not in text:
        return f"{type(error).__name__}: {text}"
    return f"{type(error).__name__}; the site's own log says more"
