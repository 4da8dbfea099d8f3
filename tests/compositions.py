"""Which pairs of methods work together: each is tried on two small sites of images."""

from collections.abc import Mapping
from typing import Any

import torch
from laws import method

from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, FedSkewError
from monai_fedskew.federation.settings import Settings

LOCAL = ("fedbn", "silobn", "sitenorm", "fedrdn", "harmofl:alpha=0")  # the last: amplitude normalisation alone
OTHERS = ("fedprox", "moon", "fedalign", "gradaug", "mixup", "scaffold", "fednova", "fedadam")


def tried(first: str, second: str, labs: Mapping[str, Mapping[str, Any]]) -> str:
    """Run a pair for two rounds of two sites; return why it is refused, nothing if all that it shares is finite.

    Raises:
        AssertionError: it ran to a state that is not finite.
    """
    text = f"{first}+{second}"
    images = [sources for name, sources in labs.items() if name.startswith("images")]
    try:
        built = method(text)
    except FedSkewError as error:
        return str(error)
    for number, sources in enumerate(images):  # the second is without momentum, which some refuse
        try:
            outcome = simulate(built, {name: sources[name] for name in ("A", "B")}, Settings(rounds=2, choose="last"))
        except FedSkewError as error:
            if number + 1 == len(images) or not isinstance(error, ConfigError):
                return str(error)
        else:
            break
    for key, value in outcome.cast.tensors.items():
        assert not value.is_floating_point() or torch.isfinite(value).all(), f"{text}: {key} is not finite"
    return ""
