"""An image of any range as one that can be looked at."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["eight_bits"]

_SHOWN = (0.5, 99.5)  # percentiles that become black and white, so that dim images can be seen


def eight_bits(image: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Stretch an image from its 0.5 to its 99.5 percentile, over all channels, to 0 .. 255; beyond it is clipped.

    Args:
        image: finite values of any range and shape.

    Returns:
        uint8 of the same shape; all 0 where the image is constant.

    Example:
        >>> eight_bits(np.array([[2.0, 3.0, 4.0]])).tolist()
        [[0, 127, 255]]
    """
    low, high = (float(value) for value in np.percentile(image, _SHOWN))
    shown: NDArray[np.uint8] = (np.clip((image - low) / max(high - low, 1e-12), 0, 1) * 255).astype(np.uint8)
    return shown
