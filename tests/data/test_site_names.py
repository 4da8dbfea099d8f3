import pytest

from monai_fedskew.data.site_names import require_site_name
from monai_fedskew.errors import DataError


@pytest.mark.parametrize("name", ["NYU", "UM_1", "Köln (2)", "サイト", "a.b+c-d", "Zu\u0308rich", "7", "x" * 100])
def test_plain_names_are_kept(name: str) -> None:
    """Letters of any script, digits, space and a few signs."""
    assert require_site_name(name, "here") == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "a site must have a name"),
        ("../evil", "character '/' is not allowed"),
        ("/tmp/evil", "character '/' is not allowed"),
        ("a/b", "character '/' is not allowed"),
        ("a\\b", "is not allowed"),
        (".", "must not start with a dot"),
        ("..", "must not start with a dot"),
        (".hidden", "must not start with a dot"),
        (" A", "nor start or end with a space"),
        ("A ", "nor start or end with a space"),
        ("A\nB", r"character '\\n' is not allowed"),
        ("A\x00", r"character '\\x00' is not allowed"),
        ("A\u2028B", "is not allowed"),
        ("\ud800", "is not allowed"),
        ("$__import__('os').getpid()", r"character '\$' is not allowed"),
        ("@lr", "character '@' is not allowed"),
        ("%x", "character '%' is not allowed"),
        ("site#1", "character '#' is not allowed"),
        ("a::b", "character ':' is not allowed"),
        ("a=b", "character '=' is not allowed"),
        ("a,b", "character ',' is not allowed"),
        ("x" * 300, "300 characters, more than 100"),
        ("サ" * 70, "70 characters, more than 100 .or 200 bytes"),
        ("prepare.json", "the name of a file beside"),
        (5, "must be text, not int"),
    ],
)
def test_names_that_do_harm_are_refused(name: object, message: str) -> None:
    """What leaves the folder or what a configuration takes for a word of its own; the error says where it stands."""
    with pytest.raises(DataError, match=f"^pheno.csv, line 2: SITE_ID is (?s:.*){message}.*; rename the site$"):
        require_site_name(name, "pheno.csv, line 2: SITE_ID")
