import pytest
import torch
from safetensors.torch import save_file

from monai_fedskew.errors import StateError
from monai_fedskew.methods import fedrdn, sitenorm
from monai_fedskew.transforms import NormaliseBatch

VECTORS = torch.tensor([[1.0, 10.0], [3.0, 30.0], [5.0, 50.0]])


def test_vectors_by_hand(view, federate) -> None:
    """Per feature with ddof=1: means 3 and 30, stds sqrt((4+0+4)/2) = 2 and 20: rows -1, 0, 1 in both."""
    site = view("A", [VECTORS])
    federate(sitenorm().parts[0], [site])

    for stage in ("normalise", "normalise_eval"):
        assert site.batch(stage, VECTORS).tolist() == [[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]]


def test_nothing_leaves_the_site(view) -> None:
    """The survey reports nothing; the statistics are private."""
    bound = sitenorm().parts[0].bind(view("A", [VECTORS]))

    assert bound.survey() == {}
    assert sorted(bound.private()) == ["ddof", "mean", "samples", "std", "std_mode"]


def test_a_rebuilt_site_normalises_alike(view, federate) -> None:
    """From private state, bit for bit."""
    site, rebuilt = view("A", [VECTORS / 7]), view("A")
    (bound,) = federate(sitenorm().parts[0], [site])

    sitenorm().parts[0].bind(rebuilt).restore(bound.private())

    assert torch.equal(rebuilt.batch("normalise", VECTORS), site.batch("normalise", VECTORS))


def test_constant_channel_divides_by_one(view, federate) -> None:
    """Case 16: a channel of 7 everywhere: 7 becomes 0 and 9 becomes 2, all finite, one warning."""
    image = torch.stack([torch.full((4, 4, 4), 7.0), torch.randn(4, 4, 4)])[None]
    site, test = view("A", [image]), image.clone()
    test[:, 0] = 9

    with pytest.warns(UserWarning, match="site A: std is 0 in channel 0") as caught:
        federate(sitenorm().parts[0], [site])

    out, tested = site.batch("normalise_eval", image), site.batch("normalise_eval", test)
    assert len(caught) == 1
    assert (out[:, 0] == 0.0).all()
    assert (tested[:, 0] == 2.0).all()
    assert out.isfinite().all()


@pytest.mark.parametrize("method", [sitenorm, fedrdn])
def test_an_exported_model_normalises_alike(method, view, federate, tmp_path) -> None:
    """What deploy() names, read from a file, gives the bits of the evaluation stage."""
    site = view("A", [torch.randn(50, 3) * torch.tensor([1.0, 7.0, 0.3]) + 4])
    (bound,) = federate(method().parts[0], [site])
    deployment = bound.deploy()
    save_file(dict(deployment.tensors), tmp_path / "site.safetensors")
    x = torch.randn(20, 3)

    inputs, _ = NormaliseBatch(tmp_path / "site.safetensors")({"image": x, "label": torch.zeros(20)})

    assert deployment.target == "monai_fedskew.transforms.NormaliseBatch"
    assert torch.equal(inputs, site.batch("normalise_eval", x))


def test_without_survey_nothing_is_normalised(view) -> None:
    """An error, not raw inputs."""
    site = view("A")
    sitenorm().parts[0].bind(site)

    with pytest.raises(StateError, match="site A: sitenorm has no statistics; survey the site first"):
        site.batch("normalise", VECTORS)
