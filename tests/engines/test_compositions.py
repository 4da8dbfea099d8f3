"""Every pair of a local normalisation with another method runs, or is refused with a reason."""

from typing import Any

import pytest
from compositions import LOCAL, OTHERS, tried
from laws import make_labs

REFUSED: dict[tuple[str, str], str] = {}  # pair: what the reason says


@pytest.mark.parametrize("second", OTHERS)
@pytest.mark.parametrize("first", LOCAL)
def test_a_pair_runs_or_is_refused_with_a_reason(
    first: str, second: str, sources: dict[str, Any], image_sources: dict[str, Any]
) -> None:
    """Refused are the pairs named above and no other."""
    reason = tried(first, second, make_labs(sources, image_sources))
    expected = REFUSED.get((first, second), "")
    assert (expected in reason) if expected else reason == ""
