"""What methods that reckon with the steps of SGD ask of a site's optimizer."""

import torch

from monai_fedskew.core.part import SiteView
from monai_fedskew.errors import ConfigError

__all__ = ["require_sgd"]


def require_sgd(method: str, site: SiteView, *, without: tuple[str, ...], why: str) -> None:
    """Refuse every optimizer but torch's SGD without some of its options.

    Args:
        method: name of the method, for the error.
        site: whose optimizer it is.
        without: options that must be off in all parameter groups.
        why: the reason, to end the error with.

    Raises:
        ConfigError: another optimizer, or one of the options is on.
    """
    if type(site.optimizer) is not torch.optim.SGD:  # a subclass may step otherwise
        raise ConfigError(
            f"site {site.name}: {method} needs torch.optim.SGD, not {type(site.optimizer).__name__}: {why}; "
            "change the bundle's optimizer"
        )
    for group in site.optimizer.param_groups:
        for option in without:
            if group[option]:
                raise ConfigError(
                    f"site {site.name}: {method} needs SGD without {option} (here {group[option]}): {why}; "
                    "take it out of the bundle's optimizer"
                )
