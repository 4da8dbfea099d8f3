"""What a server may hear of an error at a site, and how much of it."""

from monai_fedskew.errors import DataError, FedSkewError

__all__ = ["one_line", "root_cause", "what_may_cross"]

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
    text = one_line(str(error))
    is_ours = all(isinstance(part, FedSkewError) and not isinstance(part, DataError) for part in chain)
    if is_ours and "/" not in text and "\\" not in text:
        return f"{type(error).__name__}: {text}"
    return f"{type(error).__name__}; the site's own log says more"


def root_cause(error: BaseException) -> str:
    """Say what an error began with, for the site's own user: MONAI says "applying transform" of whatever went wrong.

    Args:
        error: as it was caught at the site; its causes are looked through.

    Example:
        >>> outer = RuntimeError("applying transform <object>")
        >>> outer.__cause__ = ValueError("no patch fits")
        >>> root_cause(outer)
        'ValueError: no patch fits'
    """
    while error.__cause__ is not None and not isinstance(error, FedSkewError):
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def one_line(text: str) -> str:
    r"""Return a text as one line of at most 300 characters, as it is written and as it is received.

    >>> one_line("out of\n  disk")
    'out of disk'
    """
    return " ".join(text.split())[:_SHOWN]
