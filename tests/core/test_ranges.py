import math

import pytest

from monai_fedskew.core.ranges import require_choice, require_flag, require_number, require_variant, require_whole
from monai_fedskew.errors import ConfigError


@pytest.mark.parametrize("value", [0, 0.5, 1])
def test_bounds_that_are_allowed_themselves(value) -> None:
    """Both ends belong to the range."""
    require_number("method m", "p", value, least=0, most=1)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, {"least": 0}, "p=-1 must be a finite number of at least 0"),
        (0, {"above": 0}, "p=0 must be a finite number above 0"),
        (math.inf, {"above": 0}, "p=inf must be a finite number above 0"),
        (math.nan, {"least": 0, "most": 1}, "p=nan must be a number of at least 0 and at most 1"),
        (1.0, {"least": 0, "below": 1}, "p=1.0 must be a number of at least 0 and below 1"),
        (True, {"above": 0, "most": 1}, "p=True must be a number above 0 and at most 1"),
        ("1", {}, "p='1' must be a finite number"),
        (-math.inf, {}, "p=-inf must be a finite number"),
    ],
)
def test_what_is_no_number_within_bounds_is_refused(value, bounds, message) -> None:
    """The error names method, parameter, value and range."""
    with pytest.raises(ConfigError) as caught:
        require_number("method m", "p", value, **bounds)
    assert str(caught.value) == f"method m: {message}"


@pytest.mark.parametrize("value", [1, 2.0, True, "2"])
def test_what_is_no_whole_number_is_refused(value) -> None:
    """Nor one that is too small."""
    with pytest.raises(ConfigError, match=rf"^method m: n={value!r} must be a whole number, 2 or more$"):
        require_whole("method m", "n", value, 2)


def test_other_choices_are_refused() -> None:
    """All choices are told, None as it is written in a method's text."""
    with pytest.raises(ConfigError, match=r"^method m: std='x' must be one of image, pooled, none$"):
        require_choice("method m", "std", "x", ("image", "pooled", None))
    with pytest.raises(ConfigError, match=r"^method m: variant='x' must be one of paper, official$"):
        require_variant("method m", "x")
    with pytest.raises(ConfigError, match=r"^method m: allow_none=1 must be true or false$"):
        require_flag("method m", "allow_none", 1)
