"""SiloBN: running statistics stay at the site, the affine pair is shared."""

from monai_fedskew.core.keys import except_modules
from monai_fedskew.core.method import Method
from monai_fedskew.core.ranges import require_flag

__all__ = ["silobn"]


def silobn(allow_none: bool = False) -> Method:
    """Keep the running statistics of every batch norm at its site; average weights and affine pairs.

    running_mean, running_var and num_batches_tracked are private; FedBN keeps the affine pair private as well.

    Paper: Andreux et al. 2020, Siloed Federated Learning for Multi-Centric Histopathology Datasets, arXiv 2008.07424.

    Args:
        allow_none: a network without running statistics gives a warning and FedAvg instead of an error.

    Raises:
        ConfigError: allow_none is no truth value; or, when it meets a network, nothing to keep.

    >>> silobn().share.entries
    ('running_mean', 'running_var', 'num_batches_tracked')
    """
    require_flag("method silobn", "allow_none", allow_none)
    entries = ("running_mean", "running_var", "num_batches_tracked")
    return Method("silobn", share=except_modules(entries=entries, allow_none=allow_none))
