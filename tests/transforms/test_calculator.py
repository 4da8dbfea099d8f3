import json
import pickle
from itertools import permutations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.transforms import SiteStatistics, StatisticsCalculator
from monai_fedskew.transforms.moments import CHUNK

SMALL = np.arange(1, 9, dtype=np.float32).reshape(1, 2, 2, 2)  # case 17: values 1 to 8
PADDED = np.pad(SMALL, ((0, 0), (1, 1), (1, 1), (1, 1)))


def calculated(*images, masks=None, **definition) -> SiteStatistics:
    """Statistics of these images."""
    calculator = StatisticsCalculator("A", **definition)
    for k, image in enumerate(images):
        calculator.update(image, None if masks is None else masks[k])
    return calculator.result()


def scans(n, *, channels=2, spatial=(5, 4, 3)) -> list[torch.Tensor]:
    """Images with an offset of their own."""
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(channels, *spatial, generator=rng) * (k + 1) + 100 * k for k in range(n)]


@pytest.mark.parametrize(
    ("std_mode", "ddof", "std"),
    [("image", 1, 2.121320), ("image", 0, 1.5), ("pooled", 0, 5.722762), ("pooled", 1, 6.608076)],
)
def test_each_std_by_hand(std_mode, ddof, std) -> None:
    """Case 15: images [0, 2] and [10, 14] have a mean of 6.5; see test_statistics for the stds."""
    found = calculated(np.array([[0, 2]]), np.array([[10, 14]]), std_mode=std_mode, ddof=ddof)

    assert found.mean == (6.5,)
    assert found.std[0] == pytest.approx(std, abs=1e-6)


@pytest.mark.parametrize("std_mode", ["image", "pooled"])
@pytest.mark.parametrize("spatial", [(9,), (5, 4), (5, 4, 3), (3, 4, 3, 2), (40, 30, 31)])
def test_any_number_of_axes(std_mode, spatial) -> None:
    """As numpy has it, also above the number of values that are taken at once."""
    images = scans(3, spatial=spatial)
    flat = np.stack([image.flatten(1).double().numpy() for image in images])

    found = calculated(*images, std_mode=std_mode)

    pooled = flat.transpose(1, 0, 2).reshape(2, -1).std(1, ddof=1)
    assert found.mean == pytest.approx(flat.mean((0, 2)), rel=1e-12)
    assert found.std == pytest.approx(flat.std(2, ddof=1).mean(0) if std_mode == "image" else pooled, rel=1e-12)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", ">i2", ">f4", "float16", "float64", "bool"])
def test_any_type_of_numbers(dtype) -> None:
    """As files hold them: no conversion is asked of the caller."""
    image = (np.arange(12).reshape(1, 3, 4) % 2).astype(dtype)

    found = calculated(image, ddof=0)

    assert (found.mean, found.std) == ((0.5,), (0.5,))


def test_arrays_that_torch_does_not_take() -> None:
    """Mapped for reading only, or turned around; the one given stays."""
    image = np.arange(12.0).reshape(1, 3, 4)
    frozen = image.copy()
    frozen.flags.writeable = False

    assert calculated(frozen) == calculated(image[:, ::-1, ::-1]) == calculated(image)


def test_bfloat16_and_tensors_that_carry_a_gradient() -> None:
    """Torch has types that numpy has not."""
    image = torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16, requires_grad=True)

    assert calculated(image, ddof=0).std == (0.5,)


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e7, 1e10])
def test_offsets_do_no_harm(offset) -> None:
    """Values 0, 1 and 2 about any offset have a pooled std of sqrt(2/3)."""
    image = offset + np.tile([0.0, 1.0, 2.0], CHUNK)[None]

    assert calculated(image, image, std_mode="pooled", ddof=0).std[0] == pytest.approx((2 / 3) ** 0.5, rel=1e-9)


def test_a_background_far_from_the_values_does_no_harm() -> None:
    """Half of it 0, half 1e7 plus 0, 1 and 2: the foreground still has a std of sqrt(2/3)."""
    image = np.concatenate([np.zeros(3 * CHUNK), 1e7 + np.tile([0.0, 1.0, 2.0], CHUNK)])[None]

    assert calculated(image, ddof=0, region="nonzero").std[0] == pytest.approx((2 / 3) ** 0.5, rel=1e-9)


def test_background_does_not_count() -> None:
    """Case 17: (1 + ... + 8) / 8 = 4.5 and sqrt(63 / 12) = 2.291288, padded or not; over all voxels 36 / 64."""
    mask = (PADDED > 0).astype(np.uint8)

    for found in (
        calculated(SMALL, ddof=0),
        calculated(PADDED, ddof=0, region="nonzero"),
        calculated(PADDED, ddof=0, region="mask", masks=[mask]),
    ):
        assert (found.mean[0], found.std[0]) == pytest.approx((4.5, 2.291288), abs=1e-6)
    assert calculated(PADDED).mean == (0.5625,)


def test_a_zero_inside_the_mask_counts() -> None:
    """Case 17: 0 and 2 to 8 have a mean of 35 / 8."""
    image, mask = PADDED.copy(), PADDED > 0
    image[0, 1, 1, 1] = 0

    assert calculated(image, region="mask", masks=[mask]).mean == (4.375,)


@pytest.mark.parametrize("cut", [lambda m: m, lambda m: m[0], lambda m: np.repeat(m, 2, 0), torch.as_tensor])
def test_a_mask_is_for_all_channels_or_each(cut) -> None:
    """(1, *spatial), (*spatial) or (C, *spatial), whatever the order of axes in memory."""
    image = np.concatenate([PADDED, 10 * PADDED]).transpose(0, 3, 1, 2).copy().transpose(0, 2, 3, 1)

    assert calculated(image, region="mask", masks=[cut(PADDED > 0)]).mean == (4.5, 45.0)


def test_foreground_of_a_volume_that_lies_first_axis_innermost() -> None:
    """As NIfTI files lie in memory: the mask follows the values."""
    values = np.random.default_rng(0).normal(5, 1, (40, 30, 31))
    mask = values > 5

    found = calculated(np.asfortranarray(values)[None], region="mask", masks=[mask], ddof=0)

    assert found.mean[0] == pytest.approx(values[mask].mean(), rel=1e-12)
    assert found.std[0] == pytest.approx(values[mask].std(), rel=1e-12)


@pytest.mark.parametrize("std_mode", ["image", "pooled"])
def test_order_does_not_matter(std_mode) -> None:
    """Bit for bit: nothing is rounded when images are added."""
    images = scans(4)

    assert len({calculated(*order, std_mode=std_mode) for order in permutations(images)}) == 1


@pytest.mark.parametrize("std_mode", ["image", "pooled"])
def test_merging_is_exact_and_associative(std_mode) -> None:
    """However images are dealt to calculators and these are merged, the bits are those of one that saw all."""
    images = scans(6)

    def part(*numbers):
        calculator = StatisticsCalculator("A", std_mode=std_mode)
        for k in numbers:
            calculator.update(images[k])
        return calculator

    left, right, empty = part(0, 5), part(1), part()
    left.merge(right)
    left.merge(part(2, 3, 4))
    tail, first = part(1), part(0, 5)
    tail.merge(part(2, 3, 4))
    tail.merge(first)
    empty.merge(tail)

    assert left.result() == tail.result() == empty.result() == calculated(*images, std_mode=std_mode)


def test_a_batch_is_its_images() -> None:
    """Of any size; vectors too, where the mode says how."""
    images = torch.stack(scans(5))
    whole, parts = StatisticsCalculator("A"), StatisticsCalculator("A")
    whole.update_batch(images)
    for batch in images.split((3, 2)):
        parts.update_batch(batch)

    assert whole.result() == parts.result() == calculated(*images)
    vectors = StatisticsCalculator("A", std_mode="image")
    vectors.update_batch(images[:, 0].flatten(1))
    assert vectors.result().mean == pytest.approx(calculated(*images[:, :1]).mean)


def test_foreground_of_a_batch() -> None:
    """Image by image."""
    calculator = StatisticsCalculator("A", region="nonzero")
    calculator.update_batch(torch.as_tensor(np.stack([PADDED, PADDED])))

    assert (calculator.result().mean, calculator.result().samples) == ((4.5,), 2)


def test_state_passes_through_json_and_pickle() -> None:
    """Exactly; a process may send either."""
    calculator = StatisticsCalculator("A", ddof=0, region="nonzero")
    for image in scans(3):
        calculator.update(image)
    through_json = StatisticsCalculator.from_state(json.loads(json.dumps(calculator.to_state())))
    through_pickle = pickle.loads(pickle.dumps(calculator))

    for copy in (through_json, through_pickle):
        copy.update(scans(4)[3])
    calculator.update(scans(4)[3])

    assert through_json.result() == through_pickle.result() == calculator.result()
    assert calculator.result().region == "nonzero"


@pytest.mark.parametrize(
    "change",
    [{"count": ["x"]}, {"count": []}, {"count": ["-0x1"]}, {"std_mode": "robust"}, {"samples": -1}, {"first": 3}],
)
def test_a_damaged_state_is_refused(change) -> None:
    """Nothing is merged of it."""
    calculator = StatisticsCalculator("A")
    calculator.update(SMALL)

    with pytest.raises(DataError, match="state of a statistics calculator: .*; give what to_state returned"):
        StatisticsCalculator.from_state(calculator.to_state() | change)
    with pytest.raises(DataError, match="state of a statistics calculator: KeyError"):
        StatisticsCalculator.from_state({})


def test_the_file_is_named() -> None:
    """By the caller, or as MONAI noted it in the image; else the image is counted."""
    zeros, noted = np.zeros((1, 2, 2)), MetaTensor(torch.zeros(1, 2, 2), meta={"filename_or_obj": "noted.nii"})
    calculator = StatisticsCalculator("A", region="nonzero")
    with pytest.raises(ValueError, match=r"site A, p07\.nii: no foreground in channel 0 \(region nonzero\)"):
        calculator.update(zeros, name="p07.nii")
    with pytest.raises(ValueError, match=r"site A, noted\.nii: no foreground"):
        calculator.update(noted)
    calculator.update(SMALL)
    with pytest.raises(ValueError, match="site A, image 2: no foreground"):
        calculator.update(zeros)
    assert calculator.result().samples == 1


@pytest.mark.parametrize(
    ("image", "mask", "definition", "message"),
    [
        (SMALL, None, {"region": "mask"}, "site A, image 1: region='mask' but no mask"),
        (SMALL, SMALL, {}, "site A, image 1: region='all' but a mask"),
        (SMALL, SMALL[:, 0], {"region": "mask"}, r"a mask of shape \(1, 2, 2\) for an image of \(1, 2, 2, 2\)"),
        (SMALL, 0 * SMALL, {"region": "mask"}, r"site A, image 1: no foreground in channel 0 \(region mask\)"),
        (np.zeros((1, 0, 2)), None, {}, r"site A, image 1: shape \(1, 0, 2\) holds no value"),
        (SMALL, SMALL * np.nan, {"region": "mask"}, "site A, image 1: its mask has values that are not numbers"),
        ("a.png", None, {}, "an image or mask is a tensor or an array, not str"),
        (np.array([1.0]), None, {}, r"shape \(1,\) is not \(channels, \*spatial\)"),
        (np.array([[1.0, np.nan]]), None, {}, "site A, image 1: values that are not finite in channel 0"),
        (np.array([[1.0, np.inf]]), None, {"region": "nonzero"}, "site A, image 1: values that are not finite"),
        (np.array([[1.0]]), None, {}, r"site A, image 1: 1 value\(s\) a channel give no std with ddof=1"),
        (np.array([["a", "b"]]), None, {}, "site A, image 1: values of type <U1 cannot be measured"),
        (torch.tensor([[1j, 2j]]), None, {}, "site A, image 1: complex values cannot be measured"),
    ],
)
def test_unusable_images_are_refused(image, mask, definition, message) -> None:
    """Naming site and image; nothing of it enters the sums."""
    calculator = StatisticsCalculator("A", **definition)

    with pytest.raises(DataError, match=message):
        calculator.update(image, mask)
    with pytest.raises(DataError, match="no training example to measure"):
        calculator.result()


def test_channels_must_agree() -> None:
    """Between images and between calculators."""
    one, two = StatisticsCalculator("A"), StatisticsCalculator("A")
    one.update(SMALL)
    two.update(np.concatenate([SMALL, SMALL]))

    with pytest.raises(DataError, match="site A, image 2: 2 channels, but 1 before"):
        one.update(np.concatenate([SMALL, SMALL]))
    with pytest.raises(DataError, match="site A: 2 channels, but 1 before"):
        one.merge(two)


@pytest.mark.parametrize("other", [{"ddof": 0}, {"std_mode": "pooled"}, {"region": "nonzero"}, {"site": "B"}])
def test_other_definitions_do_not_merge(other) -> None:
    """One number cannot mean two things."""
    one = StatisticsCalculator("A")
    two = StatisticsCalculator(**({"site": "A"} | other))
    three = StatisticsCalculator("A", std_mode="image")
    for calculator in (one, two):
        calculator.update(SMALL)

    for into in (one, three):  # one that is empty has its definition, too
        with pytest.raises(DataError, match=f"site A: calculators with {next(iter(other))}="):
            into.merge(two)


def test_an_unknown_region_is_refused() -> None:
    """A closed choice."""
    with pytest.raises(ConfigError, match="site A: region='brain' must be one of all, nonzero, mask"):
        StatisticsCalculator("A", region="brain")
