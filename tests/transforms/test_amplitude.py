import pytest
import torch
from monai.data import MetaTensor
from monai.engines import SupervisedEvaluator
from safetensors.torch import save_file
from torch import nn

from monai_fedskew.errors import DataError
from monai_fedskew.transforms import AmplitudeBatch, AmplitudeNormaliser, mean_amplitude
from monai_fedskew.transforms.amplitude import band_count

SIZES = [(6,), (8, 6), (5, 7), (4, 6, 5)]


def images(*size, seed=0, n=4):
    """Positive images of two channels."""
    return torch.rand(n, 2, *size, generator=torch.Generator().manual_seed(seed)) + 0.5


def reference(batch, band):
    """A normaliser to what these images have."""
    return AmplitudeNormaliser(*mean_amplitude([batch], band, site="A"), band)


def test_the_mean_alone_by_hand() -> None:
    """x - mean(x) + reference: (1, 3) has mean 2, reference 5: (4, 6); the sign of the mean, its phase, stays."""
    normalise = AmplitudeNormaliser(torch.tensor([[5.0]]))

    assert normalise(torch.tensor([[[1.0, 3.0]], [[-1.0, -3.0]]])).tolist() == [[[4.0, 6.0]], [[-4.0, -6.0]]]


def test_all_frequencies_by_hand() -> None:
    """(1, 3): F = mean 2 and half the difference (1 - 3) / 2 = -1, phases 0 and pi.

    Reference (5, 4): F = 5 and -4, so y = (5 - 4, 5 + 4) = (1, 9).
    """
    normalise = AmplitudeNormaliser(torch.tensor([[5.0, 4.0]]), (2,), 0.5)

    assert normalise(torch.tensor([[[1.0, 3.0]]])).tolist() == [[[1.0, 9.0]]]


@pytest.mark.parametrize("size", SIZES)
def test_a_band_of_the_mean_alone_is_the_identity_of_the_mean(size) -> None:
    """The transform with a band that holds frequency 0 only, and x - mean + reference, agree to rounding."""
    batch, other = images(*size).double(), images(*size, seed=1).double()
    narrow = 0.01

    by_transform, by_mean = reference(other, narrow)(batch), reference(other, 0.0)(batch)

    assert torch.allclose(by_transform, by_mean, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("band", [0.2, 0.5])
def test_amplitudes_are_the_references_and_phases_the_images(size, band) -> None:
    """Checked against the full complex transform: within the band and, untouched, outside it."""
    batch, other = images(*size).double(), images(*size, seed=1).double()
    axes = tuple(range(2, batch.ndim))

    out = reference(other, band)(batch)

    before, after = torch.fft.fftn(batch, dim=axes), torch.fft.fftn(out, dim=axes)
    wanted = torch.fft.fftn(other, dim=axes).abs().mean(0)
    steps = torch.meshgrid(*[torch.fft.fftfreq(n) for n in size], indexing="ij")
    inside = torch.stack(steps).abs().amax(0) <= band + 1e-9
    assert out.dtype == torch.float64  # real
    assert torch.allclose(after.abs()[..., inside], wanted.expand_as(before)[..., inside].abs())
    assert torch.allclose(after[..., ~inside], before[..., ~inside])
    assert torch.allclose((after / before)[..., inside].imag, torch.zeros(()).double(), atol=1e-9)
    assert ((after / before)[..., inside].real > 0).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("band", [0.0, 0.2, 0.5])
def test_an_image_with_the_references_amplitudes_stays_as_it_is(size, band) -> None:
    """To rounding; and so a second time changes nothing."""
    batch = images(*size)
    normalise = reference(batch[:1], band)

    assert torch.allclose(normalise(batch[:1]), batch[:1], atol=1e-6)
    assert torch.allclose(normalise(normalise(batch)), normalise(batch), atol=1e-5)


def test_an_empty_image_has_phase_zero() -> None:
    """No 0/0, and rounding is not taken for a phase: a constant image becomes the same, whatever its level."""
    normalise = reference(images(8, 8), 0.5)

    empty, level = normalise(torch.zeros(1, 2, 8, 8)), normalise(torch.full((1, 2, 8, 8), 0.1))

    assert empty.isfinite().all()
    assert torch.allclose(empty, level)


def test_the_mean_does_not_depend_on_how_images_are_read() -> None:
    """One batch, or many; (C, coefficients) numbers and no example."""
    batch = images(8, 6, n=70)

    (first, size), (second, _) = (mean_amplitude(list(batch.split(n)), 0.5, site="A") for n in (70, 33))

    assert torch.allclose(first, second, rtol=1e-12)
    assert size == (8, 6)
    assert first.shape == (2, band_count((8, 6), 0.5)) == (2, 8 * 4)
    assert first.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.uint8])
def test_types(dtype) -> None:
    """Floating types stay, integers become float32."""
    out = reference(images(4, 4), 0.5)((images(4, 4) * 9).to(dtype))

    assert out.dtype == (dtype if dtype.is_floating_point else torch.float32)
    assert out.isfinite().all()


@pytest.mark.parametrize("band", [0.0, 0.5])
def test_meta_tensor_keeps_its_meta_and_inputs_stay(band) -> None:
    """What SaveImage needs downstream stays with the batch."""
    x = MetaTensor(images(4, 4), meta={"filename_or_obj": "a.nii"})
    before = x.clone()

    out = reference(images(4, 4, seed=1), band)(x)

    assert isinstance(out, MetaTensor)
    assert out.meta["filename_or_obj"] == "a.nii"
    assert torch.equal(x, before)


def test_other_sizes_and_channels_are_refused() -> None:
    """Whole images of several sizes can have their mean replaced, and no more."""
    with pytest.raises(DataError, match=r"inputs of shape \(4, 2, 6, 6\) do not fit .* 2 channels and size \(4, 4\)"):
        reference(images(4, 4), 0.5)(images(6, 6))
    with pytest.raises(DataError, match="do not fit amplitudes of 2 channels and any size"):
        reference(images(4, 4), 0.0)(images(4, 4)[:, :1])
    with pytest.raises(DataError, match=r"must be \(channels, 12\)"):
        AmplitudeNormaliser(torch.ones(1, 7), (4, 4), 0.5)
    assert reference(images(4, 4), 0.0)(images(6, 6)).shape == (4, 2, 6, 6)


def test_what_cannot_be_measured_is_refused() -> None:
    """Two sizes, vectors, nothing, values that are not finite; each names the site."""
    for batches, band, message in (
        ([images(4, 4), images(6, 6)], 0.5, r"site A: images of 2 channels and size \(6, 6\) after 2 and \(4, 4\)"),
        ([torch.ones(3, 5)], 0.0, r"site A: inputs of shape \(3, 5\) are no images"),
        ([], 0.0, "site A: no training example to measure"),
        ([images(4, 4) / 0], 0.5, "site A: values that are not finite among the images"),
    ):
        with pytest.raises(DataError, match=message):
            mean_amplitude(batches, band, site="A")
    assert mean_amplitude([images(4, 4), images(6, 6)], 0.0, site="A")[1] == ()


@pytest.mark.parametrize("band", [0.0, 0.5])
def test_an_exported_evaluator_repeats_it_bit_for_bit(band, tmp_path) -> None:
    """A plain MONAI evaluator with AmplitudeBatch gives the network what the part gives it."""
    amplitude, size = mean_amplitude([images(4, 4, seed=1)], band, site="A")
    tensors = {"amplitude": amplitude, "size": torch.tensor(size or (0,)), "band": torch.tensor(band).double()}
    save_file(tensors, tmp_path / "a.safetensors")
    batch = {"image": images(4, 4), "label": torch.zeros(4)}
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=[batch],
        network=nn.Identity(),
        prepare_batch=AmplitudeBatch(tmp_path / "a.safetensors"),
        decollate=False,
    )

    evaluator.run()

    assert torch.equal(evaluator.state.output["pred"], AmplitudeNormaliser(amplitude, size, band)(batch["image"]))


def test_a_file_without_amplitudes_is_refused(tmp_path) -> None:
    """The path, and what it lacks."""
    with pytest.raises(DataError, match=r"a\.safetensors: no such file"):
        AmplitudeBatch(tmp_path / "a.safetensors")
    save_file({"amplitude": torch.ones(1, 1)}, tmp_path / "a.safetensors")
    with pytest.raises(DataError, match="lacks band and size; export the site again"):
        AmplitudeBatch(tmp_path / "a.safetensors")
