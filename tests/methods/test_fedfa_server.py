import pytest
import torch

from monai_fedskew.errors import StateError
from monai_fedskew.methods.fedfa import fedfa, sharing


def report(**stages) -> dict[str, torch.Tensor]:
    """A site's running means: stage -> (means, stds)."""
    return {stage: torch.tensor(pair) for stage, pair in stages.items()}


def test_gamma_by_hand() -> None:
    """Three sites, channel means (0, 0), (1, 2), (2, 4): variances 1 and 4, r = 1/2 and 4/5, sum 13/10, so gamma =
    2 * (5/13, 8/13) = (0.7692, 1.2308). Stds equal everywhere: nothing to go by, gamma = 1."""
    part = fedfa().parts[0]
    memory = {}
    for site, means in (("A", [0.0, 0.0]), ("B", [1.0, 2.0]), ("C", [2.0, 4.0])):
        memory = part.merge(memory, {site: report(layer1=(means, [1.0, 1.0]))}, 3)

    told = part.tell(memory)

    assert told["layer1"][0].tolist() == pytest.approx([0.7692, 1.2308], abs=1e-4)
    assert told["layer1"][1].tolist() == [1.0, 1.0]


def test_gamma_has_mean_one() -> None:
    """Whatever the variances; where no channel differs between sites it is one everywhere."""
    assert sharing(torch.rand(7)).mean().item() == pytest.approx(1.0)
    assert sharing(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
    assert sharing(torch.tensor([1e30, 0.0])).tolist() == [2.0, 0.0]


def test_reports_that_cannot_be_used_are_refused() -> None:
    """Each names the site, so that it alone is left out."""
    part, good = fedfa().parts[0], report(layer1=([0.0, 0.0], [1.0, 1.0]))
    for bad, message in (
        ({"layer1": torch.zeros(2)}, r"site B: fedfa report: layer1 is float32 \(2,\), not"),
        (report(layer1=([0.0, 0.0], [1.0, -1.0])), "site B: fedfa report: layer1 has a std below 0"),
        (report(layer1=([0, 0], [1, 1])), r"site B: fedfa report: layer1 is int64 \(2, 2\), not"),
        (report(layer1=([0.0], [1.0], [1.0])), r"site B: fedfa report: layer1 is float32 \(3, 1\), not"),
        (report(layer1=([[0.0]], [[1.0]])), r"site B: fedfa report: layer1 is float32 \(2, 1, 1\), not"),
        (report(layer2=([0.0, 0.0], [1.0, 1.0])), "site B: fedfa report: no key matches"),
        (report(layer1=([0.0] * 3, [1.0] * 3)), r"site B: fedfa report: layer1 is float32 \(2, 3\), but at site A"),
    ):
        with pytest.raises(StateError, match=message):
            part.merge(part.merge({}, {"A": good}, 2), {"B": bad}, 2)
    with pytest.raises(StateError, match="site B: fedfa reports nothing with variant=official"):
        fedfa(variant="official").parts[0].merge({}, {"B": good}, 2)


def test_merging_is_pure_and_keeps_absent_sites() -> None:
    """A trial leaves the memory as it was; a site that was not sampled keeps its older report."""
    part = fedfa().parts[0]
    memory = part.merge({}, {"A": report(layer1=([0.0], [1.0])), "B": report(layer1=([2.0], [1.0]))}, 2)

    later = part.merge(memory, {"B": report(layer1=([4.0], [1.0]))}, 2)

    assert (memory["B/layer1"][0].item(), later["B/layer1"][0].item()) == (2.0, 4.0)
    assert later["A/layer1"][0].item() == 0.0
