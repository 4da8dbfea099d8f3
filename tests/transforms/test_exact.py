import math
import sys
from itertools import permutations

import pytest

from monai_fedskew.transforms.exact import SCALE, as_integer, quotient


@pytest.mark.parametrize("value", [0.1, -3.0, 0.0, 5e-324, sys.float_info.max, sys.float_info.min])
def test_every_finite_number_comes_back(value) -> None:
    """The smallest and the largest float64 among them."""
    assert quotient(as_integer(value), 1 << SCALE) == value


def test_sums_do_not_depend_on_the_order() -> None:
    """1 + 1e100 - 1e100 is 0 or 1 in float64, by order; here it is 1."""
    sums = {sum(map(as_integer, order)) for order in permutations([1.0, 1e100, -1e100])}

    assert [quotient(total, 1 << SCALE) for total in sums] == [1.0]


def test_what_is_too_large_is_infinite() -> None:
    """And found as not finite by whoever asks."""
    assert quotient(as_integer(sys.float_info.max) * 4, 1 << SCALE) == math.inf
