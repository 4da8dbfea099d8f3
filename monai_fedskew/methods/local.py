"""Local: each site alone, one end every study is compared with."""

from monai_fedskew.core.keys import no_keys
from monai_fedskew.core.method import Method

__all__ = ["local"]


def local() -> Method:
    """Train each site alone on its own data; nothing is sent.

    w_k = what site k finds by itself. Only a normalisation composes with it (``sitenorm+local``).

    Paper: Li et al. 2021, FedBN, arXiv 2102.07623 (SingleSet).

    >>> local().scope
    'local'
    """
    return Method("local", share=no_keys(), scope="local")
