from dataclasses import replace

import pytest
import torch

from monai_fedskew.errors import ConfigError, DataError, StateError
from monai_fedskew.transforms import SiteStatistics, measure, require_comparable

IMAGES = torch.tensor([[[0.0, 2.0]], [[10.0, 14.0]]])  # case 15: two images of one channel


@pytest.mark.parametrize(
    ("std_mode", "ddof", "std"),
    [("image", 1, 2.121320), ("image", 0, 1.5), ("pooled", 0, 5.722762), ("pooled", 1, 6.608076)],
)
def test_each_std_by_hand(std_mode, ddof, std) -> None:
    """Case 15: mean (0+2+10+14)/4 = 6.5. Stds of the images with ddof=1 are sqrt(2) and sqrt(8), on average 2.12132.
    Pooled: squares (42.25+20.25+12.25+56.25) = 131, over 4 or 3."""
    found = measure([IMAGES], site="A", std_mode=std_mode, ddof=ddof)

    assert found.mean == (6.5,)
    assert found.std[0] == pytest.approx(std, abs=1e-6)
    assert (found.std_mode, found.ddof, found.samples) == (std_mode, ddof, 2)


def test_default_is_image_for_images_and_pooled_for_vectors() -> None:
    """None chooses by the number of axes."""
    assert measure([torch.randn(4, 2, 3)], site="A").std_mode == "image"
    assert measure([torch.randn(4, 2)], site="A").std_mode == "pooled"


def test_vectors_with_image_are_images_of_one_channel() -> None:
    """One mean over all features: (1+3)/2 = 2 and (5+11)/2 = 8, on average 5."""
    found = measure([torch.tensor([[1.0, 3.0], [5.0, 11.0]])], site="A", std_mode="image", ddof=0)

    assert (found.mean, found.std) == ((5.0,), (2.0,))


@pytest.mark.parametrize("std_mode", ["image", "pooled"])
@pytest.mark.parametrize("sizes", [(1,) * 12, (12,), (5, 7), (11, 1)])
def test_batches_do_not_matter(std_mode, sizes) -> None:
    """Merged moments equal those of all at once."""
    images = torch.randn(12, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double() + 5
    expected = {"image": images.flatten(2).std(2).mean(0), "pooled": images.transpose(0, 1).flatten(1).std(1)}

    found = measure(images.split(sizes), site="A", std_mode=std_mode)

    assert torch.tensor(found.std).double() == pytest.approx(expected[std_mode], rel=1e-6)
    assert torch.tensor(found.mean).double() == pytest.approx(images.transpose(0, 1).flatten(1).mean(1), rel=1e-6)


def test_large_offsets_do_not_hurt() -> None:
    """Values around a million that differ by 1: a sum of squares in float32 would give 0 or NaN."""
    vectors = 1e6 + torch.tensor([[0.0], [1.0], [2.0]])

    assert measure(vectors.split(1), site="A").std == (1.0,)


@pytest.mark.parametrize("value", [7.0, 0.1, 1e-30, 3e8])
@pytest.mark.parametrize("std_mode", ["image", "pooled"])
def test_constant_channel_has_a_std_of_exactly_zero(value, std_mode) -> None:
    """Case 16: whatever the constant, over several batches, with one warning that names site and channel."""
    batch = torch.randn(3, 2, 5)
    batch[:, 0] = value

    with pytest.warns(UserWarning, match="site A: std is 0 in channel 0: a constant input, divided by 1") as caught:
        found = measure([batch, batch, batch[:1]], site="A", std_mode=std_mode)

    assert found.std[0] == 0.0
    assert len(caught) == 1


def test_many_constant_channels_are_counted_and_some_named() -> None:
    """Five at most."""
    with pytest.warns(UserWarning, match=r"8 channels \(channel 0, 1, 2, 3, 4, \.\.\.\)"):
        measure([torch.ones(3, 8)], site="A")


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "site A: no training example to measure"),
        ([torch.randn(1, 3)], r"site A: 1 value\(s\) a channel give no std with ddof=1; use ddof=0"),
        ([torch.randn(4, 3, 1)], r"site A: 1 value\(s\) a channel give no std with ddof=1"),
        ([torch.tensor([[1.0, torch.nan], [2.0, 3.0]])], "site A: values that are not finite in channel 1"),
        ([torch.randn(4, 3), torch.randn(4, 2)], "site A: 2 channels, but 3 before"),
    ],
)
def test_unusable_examples_are_refused(batches, message) -> None:
    """The site is named, and what to look at."""
    with pytest.raises(DataError, match=message):
        measure(batches, site="A")


def test_unknown_definition_is_refused() -> None:
    """std and ddof are closed choices."""
    with pytest.raises(ConfigError, match="site A: std='robust' must be one of image, pooled, none"):
        measure([IMAGES], site="A", std_mode="robust")


def test_state_holds_all_but_the_name() -> None:
    """Exactly, both ways."""
    found = measure([torch.randn(5, 3)], site="A", ddof=0)

    assert SiteStatistics.from_state("A", found.to_state()) == found


@pytest.mark.parametrize("region", ["nonzero", "mask"])
def test_state_holds_the_region_only_where_it_is_not_all(region) -> None:
    """What FedRDN sends stays as it was, and a state of an older version is read."""
    all_of_it = SiteStatistics("A", (0.0,), (1.0,), "image", 1, 10)
    part = replace(all_of_it, region=region)

    assert "region" not in all_of_it.to_state()
    assert SiteStatistics.from_state("A", part.to_state()) == part
    with pytest.raises(StateError, match="site A: statistics with region=7"):
        SiteStatistics.from_state("A", part.to_state() | {"region": torch.tensor(7)})


def test_integer_and_meta_tensors_are_measured() -> None:
    """As MONAI's loaders give them."""
    from monai.data import MetaTensor

    assert measure([IMAGES.to(torch.uint8)], site="A").mean == (6.5,)
    assert measure([MetaTensor(IMAGES)], site="A").mean == (6.5,)


def test_nothing_to_compare_is_fine() -> None:
    """No site, no conflict."""
    require_comparable([])
