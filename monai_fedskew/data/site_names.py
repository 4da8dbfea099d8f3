"""The one rule for names of sites: they become names of folders, keys of results and words of MONAI's configurations.

MONAI evaluates text that starts with `$`, follows text with `@`, reads a file after `%`, and takes `#` and `::` apart.
"""

import unicodedata

from monai_fedskew.errors import DataError

__all__ = ["require_site_name"]

_SIGNS = frozenset(" _-.()+")
_KINDS = ("L", "M", "Nd")  # letters, the marks that some systems write accents as, digits
_TAKEN = ("prepare.json", "excluded.csv")  # files beside the sites' folders
_CHARACTERS, _BYTES = 100, 200  # file systems allow 255 bytes, of which temporary names need some
_RULE = "a site's name has letters, digits, space and _ - . ( ) + only"


def require_site_name(name: object, where: str) -> str:
    """Return the name of a site if it can be one.

    Args:
        name: 1 to 100 characters (200 bytes): letters of any script, digits, space and ``_ - . ( ) +``; no dot in
            front, no space at either end, and not `prepare.json` or `excluded.csv`.
        where: table and row, or file and key, for the error.

    Raises:
        DataError: it cannot. Names `where`, the value, and what is wrong with it.

    Example:
        >>> require_site_name("UM_1", "pheno.csv, line 2: SITE_ID")
        'UM_1'
    """
    fault = _fault(name)
    if fault:
        shown = repr(name)
        raise DataError(f"{where} is {shown if len(shown) <= 60 else shown[:57] + '...'}: {fault}; rename the site")
    assert isinstance(name, str)
    return name


def _fault(name: object) -> str:
    if not isinstance(name, str):
        return f"a name must be text, not {type(name).__name__}"
    if not name:
        return "a site must have a name"
    if len(name) > _CHARACTERS or len(name.encode("utf-8", "surrogatepass")) > _BYTES:
        return f"{len(name)} characters, more than {_CHARACTERS} (or {_BYTES} bytes)"
    wrong = next(
        (sign for sign in name if sign not in _SIGNS and not unicodedata.category(sign).startswith(_KINDS)), ""
    )
    if wrong:
        return f"character {wrong!r} is not allowed, {_RULE}"
    if name[0] == "." or name != name.strip():
        return "it must not start with a dot, nor start or end with a space"
    return f"that is the name of a file beside the sites' folders ({', '.join(_TAKEN)})" if name in _TAKEN else ""
