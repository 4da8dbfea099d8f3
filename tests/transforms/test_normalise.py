import pytest
import torch
from monai.data import MetaTensor
from monai.engines import SupervisedEvaluator
from safetensors.torch import save_file
from torch import nn

from monai_fedskew.errors import DataError
from monai_fedskew.transforms import NormaliseBatch, SiteNormaliser

MEAN, STD = torch.tensor([[0.0, 10.0], [1.0, 20.0]]), torch.tensor([[1.0, 2.0], [4.0, 5.0]])


def test_each_sample_by_its_row_by_hand() -> None:
    """Sample 0 by row 1: (5-1)/4 = 1, (30-20)/5 = 2; sample 1 by row 0: (5-0)/1 = 5, (30-10)/2 = 10."""
    out = SiteNormaliser(MEAN, STD)(torch.tensor([[5.0, 30.0], [5.0, 30.0]]), torch.tensor([1, 0]))

    assert out.tolist() == [[1.0, 2.0], [5.0, 10.0]]


def test_mean_and_std_rows_may_differ() -> None:
    """Mean of row 1, std of row 0: (5-1)/1 = 4, (30-20)/2 = 5."""
    rows = torch.tensor([1]), torch.tensor([0])

    assert SiteNormaliser(MEAN, STD)(torch.tensor([[5.0, 30.0]]), *rows).tolist() == [[4.0, 5.0]]


@pytest.mark.parametrize("spatial", [(), (3,), (3, 2), (3, 2, 2)])
def test_channels_are_the_second_axis(spatial) -> None:
    """Also when batch, channels and space are of one size, where broadcasting from the right would pass unseen."""
    x = torch.ones(2, 2, *spatial)

    out = SiteNormaliser(MEAN, STD)(x, torch.tensor([0, 1]))

    expected = torch.tensor([[1.0, -4.5], [0.0, -3.8]]).view(2, 2, *[1] * len(spatial)).expand_as(x)
    assert torch.equal(out, expected)


def test_input_is_left_alone_and_output_is_its_own() -> None:
    """Memory is reused only when nobody holds it: a later batch does not change an earlier result."""
    normalise, x = SiteNormaliser(MEAN, STD), torch.ones(2, 2)
    first = normalise(x, torch.tensor([0, 0]))[1:]
    kept = first.clone()

    normalise(x, torch.tensor([1, 1]))

    assert torch.equal(first, kept)
    assert torch.equal(x, torch.ones(2, 2))


def test_batches_of_any_size_and_dtype_follow_each_other() -> None:
    """The buffer grows and changes with the inputs; integers become float32."""
    normalise = SiteNormaliser(MEAN.double(), STD.double())

    for size, dtype in [(2, torch.float32), (5, torch.float64), (1, torch.float32), (3, torch.uint8)]:
        out = normalise(torch.ones(size, 2, dtype=dtype), torch.zeros(size, dtype=torch.int64))
        assert out.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
        assert out.tolist() == [[1.0, -4.5]] * size


def test_std_of_zero_divides_by_one() -> None:
    """Case 16: 7 becomes 0, 9 becomes 2."""
    normalise = SiteNormaliser(torch.tensor([7.0]), torch.tensor([0.0]))

    assert normalise(torch.tensor([[7.0], [9.0]])).tolist() == [[0.0], [2.0]]


def test_one_column_serves_all_features_of_a_vector() -> None:
    """Statistics over all features at once."""
    assert SiteNormaliser(torch.tensor([1.0]), torch.tensor([2.0]))(torch.tensor([[1.0, 3.0, 5.0]])).tolist() == [
        [0.0, 1.0, 2.0]
    ]


def test_meta_tensor_keeps_its_meta() -> None:
    """What SaveImage needs downstream stays with the batch."""
    x = MetaTensor(torch.ones(1, 2, 3), meta={"filename_or_obj": "a.nii"})

    out = SiteNormaliser(MEAN, STD)(x)

    assert isinstance(out, MetaTensor)
    assert out.meta["filename_or_obj"] == "a.nii"


@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 4), (2,)])
def test_other_channels_are_refused(shape) -> None:
    """Never broadcast."""
    with pytest.raises(DataError, match="do not fit statistics of 2 channels"):
        SiteNormaliser(MEAN, STD)(torch.ones(shape))


def test_mean_and_std_of_other_shapes_are_refused() -> None:
    """Both belong to the same channels."""
    with pytest.raises(DataError, match=r"mean \(2, 2\) and std \(2,\)"):
        SiteNormaliser(MEAN, STD[0])


def test_an_evaluator_takes_it_as_prepare_batch(tmp_path) -> None:
    """As an exported bundle names it: (5-1)/2 = 2 reaches the network."""
    save_file({"mean": torch.tensor([1.0]), "std": torch.tensor([2.0])}, tmp_path / "s.safetensors")
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=[{"image": torch.tensor([[5.0]])}],
        network=nn.Identity(),
        prepare_batch=NormaliseBatch(str(tmp_path / "s.safetensors")),
        decollate=False,
    )

    evaluator.run()

    assert evaluator.state.output["pred"].tolist() == [[2.0]]


def test_single_tensors_and_pairs_are_prepared(tmp_path) -> None:
    """The other forms of a batch that MONAI takes."""
    save_file({"mean": torch.tensor([1.0]), "std": torch.tensor([2.0])}, tmp_path / "s.safetensors")
    prepare, x = NormaliseBatch(tmp_path / "s.safetensors"), torch.tensor([[5.0]])

    assert prepare(x)[0].tolist() == [[2.0]]
    assert prepare((x, x))[1].tolist() == [[5.0]]


def test_unusable_files_are_refused(tmp_path) -> None:
    """Absent, or without mean."""
    with pytest.raises(DataError, match="no such file; it holds the mean and std"):
        NormaliseBatch(tmp_path / "none.safetensors")
    save_file({"std": torch.tensor([2.0])}, tmp_path / "s.safetensors")
    with pytest.raises(DataError, match=r"s\.safetensors: lacks mean"):
        NormaliseBatch(tmp_path / "s.safetensors")
