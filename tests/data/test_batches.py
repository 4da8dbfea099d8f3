import logging

import pytest
import torch

from monai_fedskew.data.batches import ShuffledBatches, class_weights
from monai_fedskew.errors import ConfigError


@pytest.mark.parametrize(
    ("samples", "size", "lengths"),
    [
        (33, 32, [33]),
        (65, 32, [32, 33]),
        (64, 32, [32, 32]),
        (66, 32, [32, 32, 2]),
        (1, 32, [1]),
        (0, 32, []),
        (3, 1, [1, 1, 1]),
    ],
)
def test_last_sample_joins_the_batch_before(samples: int, size: int, lengths: list[int]) -> None:
    """A last batch of one joins the batch before it (case 32: 33 samples in batches of 32 make one of 33)."""
    sampler = ShuffledBatches(range(samples), size)
    batches = list(sampler)
    assert [len(batch) for batch in batches] == lengths
    assert len(sampler) == len(lengths)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(samples))


def test_the_joined_sample_changes() -> None:
    """The order is drawn anew each epoch, so that the sample at the end is not always the same."""
    sampler = ShuffledBatches(range(65), 32)
    sampler.generator = torch.Generator().manual_seed(0)
    assert len({int(list(sampler)[-1][-1]) for _ in range(5)}) > 1


def test_order_follows_the_generator() -> None:
    """The same seed gives the same batches, whatever the global random state is."""
    sampler = ShuffledBatches(range(50), 16)
    orders = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        sampler.generator = torch.Generator().manual_seed(7)
        orders.append(torch.cat(list(sampler)).tolist())
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("held", "drawn", "size", "lengths"),
    [(5, 466, 32, [32] * 14 + [18]), (466, 466, 32, [32] * 14 + [18]), (47, 20, 8, [8, 8, 4]), (3, 9, 4, [4, 5])],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_draws_as_many_samples_as_asked(
    held: int, drawn: int, size: int, lengths: list[int], shuffle: bool
) -> None:
    """Law: each of n samples floor(N / n) or ceil(N / n) times; sites of 5 and 466 images make 15 steps alike."""
    sampler = ShuffledBatches(range(held), size, shuffle=shuffle, samples_per_epoch=drawn)
    for _ in range(2):
        batches = list(sampler)
        assert [len(batch) for batch in batches] == lengths
        assert len(sampler) == len(lengths)
        times = torch.bincount(torch.cat(batches), minlength=held)
        assert set(times.tolist()) <= {drawn // held, -(-drawn // held)}


def test_samples_are_repeated_only_after_all_the_others() -> None:
    """Law: every stretch of n samples from a multiple of n on is a permutation; each epoch draws others."""
    sampler = ShuffledBatches(range(10), 7, samples_per_epoch=35)
    sampler.generator = torch.Generator().manual_seed(3)
    orders = [torch.cat(list(sampler)).tolist() for _ in range(4)]
    for order in orders:
        assert all(sorted(order[start : start + 10]) == list(range(10)) for start in (0, 10, 20))
        assert order[:10] != order[10:20]
    assert len({tuple(order[30:]) for order in orders}) > 1


def test_as_many_samples_as_there_are_is_an_epoch_as_before() -> None:
    """Asking for n of n samples gives the batches of asking for nothing, bit for bit."""
    orders = []
    for asked in (None, 50):
        sampler = ShuffledBatches(range(50), 16, samples_per_epoch=asked)
        sampler.generator = torch.Generator().manual_seed(7)
        orders.append(torch.cat([*sampler, *sampler]).tolist())
    assert orders[0] == orders[1]


@pytest.mark.parametrize(("held", "asked", "match"), [(3, 0, "samples_per_epoch=0 must be"), (0, 5, "is empty")])
def test_samples_that_cannot_be_drawn_are_refused(held: int, asked: int, match: str) -> None:
    """None asked for, or none there to repeat."""
    with pytest.raises(ConfigError, match=match):
        ShuffledBatches(range(held), 2, samples_per_epoch=asked)


@pytest.mark.parametrize("size", [0, 1.5, "x"])
def test_batch_size_is_checked(size: int) -> None:
    """A batch of no sample, or of half a sample more, is refused."""
    with pytest.raises(ConfigError, match=f"batch_size={size!r} must be a whole number"):
        ShuffledBatches(range(3), size)


def test_class_weights_are_n_over_k_times_count() -> None:
    """Case 31, site A: 30 and 10 of 40 samples: 40 / (2 * 30) = 0.6667 and 40 / (2 * 10) = 2."""
    assert class_weights([0] * 30 + [1] * 10, 2) == pytest.approx([40 / 60, 2.0])


def test_missing_class_is_named_and_finite(caplog: pytest.LogCaptureFixture) -> None:
    """Case 31, site B: only class 0; weights stay finite and one warning names the site and the missing class."""
    with caplog.at_level(logging.WARNING):
        weights = class_weights([0] * 8, 2, site="B")
    assert weights.tolist() == [1.0, 1.0]
    assert caplog.messages == ["site B: no training sample of class 1; it weighs 1"]


def test_label_out_of_range_is_refused() -> None:
    """A label the network has no output for is an error that names the labels seen."""
    with pytest.raises(ConfigError, match=r"site A: labels are \[0, 2\]"):
        class_weights([0, 2], 2, site="A")
