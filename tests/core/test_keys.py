import pickle

import pytest
from torch import nn

from monai_fedskew.core import all_keys, except_modules, except_prefix, no_keys, only_prefix
from monai_fedskew.core.keys import both
from monai_fedskew.errors import ConfigError


class MyNorm(nn.BatchNorm2d):
    """A subclass, as libraries write them."""


def block() -> nn.Module:
    """Case 02 a: a residual block whose shortcut norm is called downsample.1."""
    return nn.ModuleDict(
        {
            "conv1": nn.Conv2d(1, 1, 1),
            "bn1": nn.BatchNorm2d(1),
            "downsample": nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)),
            "sync": nn.SyncBatchNorm(1),
            "mine": MyNorm(1),
            "group": nn.GroupNorm(1, 1),
            "layer": nn.LayerNorm(1),
            "instance": nn.InstanceNorm2d(1, affine=True),
            "subnet": nn.Linear(1, 1),
        }
    )


FILTERS = [
    all_keys(),
    no_keys(),
    except_modules(),
    except_modules((nn.GroupNorm,), ("weight",), True),
    except_prefix("conv"),
    only_prefix("conv"),
    both(except_modules(), except_prefix("conv")),
]


@pytest.mark.parametrize("share", FILTERS, ids=repr)
def test_filters_are_values(share) -> None:
    """They print, compare, hash and pickle."""
    assert pickle.loads(pickle.dumps(share)) == share
    assert hash(pickle.loads(pickle.dumps(share))) == hash(share)
    assert type(share).__name__ in repr(share)


def test_batch_norm_is_found_by_type() -> None:
    """Case 02 a: four norms of five entries stay, SyncBatchNorm and a subclass among them; other norms are shared."""
    net = block()

    kept = frozenset(net.state_dict()) - except_modules()(net)

    assert len(kept) == 20
    assert {key.rpartition(".")[0] for key in kept} == {"bn1", "downsample.1", "sync", "mine"}


def test_a_network_that_is_a_batch_norm_itself() -> None:
    """Its entries have no prefix."""
    assert except_modules()(nn.BatchNorm1d(1)) == frozenset()


def test_only_some_entries_stay() -> None:
    """The affine pair is shared when entries name the statistics."""
    share = except_modules(entries=("running_mean", "running_var", "num_batches_tracked"))

    assert share(nn.Sequential(nn.BatchNorm1d(1))) == {"0.weight", "0.bias"}


def test_types_can_be_named() -> None:
    """Here group norm stays and batch norm is shared."""
    net = block()

    assert frozenset(net.state_dict()) - except_modules((nn.GroupNorm,))(net) == {"group.weight", "group.bias"}


def test_nothing_to_keep_is_an_error() -> None:
    """Case 02 b: also for batch norms without any state."""
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, affine=False, track_running_stats=False))

    with pytest.raises(ConfigError, match=r"no BatchNorm entries in Sequential.*Build the network with batch norm"):
        except_modules()(net)


def test_nothing_to_keep_can_be_allowed() -> None:
    """Case 02 b: one warning of the same text, then everything is shared."""
    net = nn.Sequential(nn.Linear(1, 1))

    with pytest.warns(UserWarning, match="no BatchNorm entries in Sequential") as caught:
        shared = except_modules(allow_none=True)(net)

    assert shared == all_keys()(net)
    assert len(caught) == 1


def test_prefixes_divide_the_entries() -> None:
    """What one shares the other keeps."""
    net = block()

    assert only_prefix("downsample.")(net) | except_prefix("downsample.")(net) == all_keys()(net)
    assert only_prefix("downsample.")(net) & except_prefix("downsample.")(net) == no_keys()(net)


@pytest.mark.parametrize("share", [only_prefix("head."), except_prefix("head.")])
def test_a_prefix_that_matches_nothing_is_an_error(share) -> None:
    """The network and the prefix are named."""
    with pytest.raises(ConfigError, match=r"no entry of ModuleDict starts with 'head\.'"):
        share(block())


def test_both_shares_what_all_share() -> None:
    """Order, repetition and all_keys do not matter."""
    a, b = except_modules(), except_prefix("conv1")

    assert both(a, b)(block()) == a(block()) & b(block())
    assert both(a, b) == both(b, all_keys(), a, a)
    assert both(a, all_keys()) == a
    assert both() == all_keys()
