"""FedBN: normalisation layers stay at the site."""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from monai_fedskew.core.keys import except_modules
from monai_fedskew.core.method import Method
from monai_fedskew.core.ranges import Variant, require_choice, require_flag, require_variant
from monai_fedskew.errors import ConfigError

__all__ = ["SpelledNorms", "fedbn"]

Norms = Literal["batch", "all"]
_BATCH: tuple[type[nn.Module], ...] = (_BatchNorm,)
_ALL: tuple[type[nn.Module], ...] = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm)


def fedbn(norms: Norms = "batch", allow_none: bool = False, variant: Variant = "paper") -> Method:
    """Keep every batch norm at its site, affine pair and running statistics; average the rest.

    w_l = sum_k p_k w_{l,k} for every entry l that no batch norm owns, found by module type.

    Paper: Li et al. 2021, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR,
    arXiv 2102.07623, algorithm 1.

    Args:
        norms: "all" also keeps instance, group and layer norms.
        allow_none: a network without such layers gives a warning and FedAvg instead of an error.
        variant: "official" keeps the entries whose name contains "bn", as the authors' script. Wrong on most networks:
            it misses 25 of 25 entries in MONAI's UNet and 15 of 100 in resnet18. For comparison with old results only.

    Raises:
        ConfigError: an unknown value; or, when it meets a network, nothing to keep.

    >>> fedbn().share
    except_modules(types=(<class 'torch.nn.modules.batchnorm._BatchNorm'>,), entries=None, allow_none=False)
    """
    require_choice("method fedbn", "norms", norms, get_args(Norms))
    require_flag("method fedbn", "allow_none", allow_none)
    require_variant("method fedbn", variant)
    if variant == "paper":
        return Method("fedbn", share=except_modules(_BATCH if norms == "batch" else _ALL, allow_none=allow_none))
    if norms == "all" or allow_none:
        raise ConfigError("method fedbn: variant='official' goes by name and takes neither norms nor allow_none")
    return Method("fedbn", share=SpelledNorms())


@dataclass(frozen=True)
class SpelledNorms:
    """Share the entries whose name lacks "bn": the rule of FedBN's script, right only where layers are so named.

    Raises:
        ConfigError: no name contains "bn".
    """

    def __call__(self, model: nn.Module) -> frozenset[str]:
        """Return the keys to share."""
        keys = frozenset(model.state_dict())
        kept = frozenset(key for key in keys if "bn" in key)
        if not kept:
            raise ConfigError(
                f"no BatchNorm entry of {type(model).__name__} has 'bn' in its name: nothing would stay at the site, "
                "which is FedAvg. Leave out variant='official': the default finds batch norms by module type"
            )
        return keys - kept
