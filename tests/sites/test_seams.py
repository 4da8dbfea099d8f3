"""Stages: their order, who may use them, and passes that leave no trace."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from variants import Piece

from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.site import Site


@pytest.fixture
def site(sources: dict[str, Any]) -> Site:
    """Site A without dropout, so that a second pass can be compared with the first."""
    opened: Site = replace(sources["A"], overrides={"dropout": 0.0}).open()
    opened.seed(0, 1)
    return opened


def _plus(value: float, seen: list[str] | None = None, name: str = "") -> Any:
    def add(output: Mapping[str, Tensor]) -> Tensor:
        if seen is not None:
            seen.append(name)
        return output["loss"] + value

    return add


def test_parts_of_a_stage_act_in_order_of_their_names(site: Site) -> None:
    """Whoever was added first: a before b before c, in each of the four steps."""
    seen: list[str] = []
    for name in ("c", "a", "b"):
        site.add(Piece(name, ("add",)), "add", _plus(0.0, seen, name))
    site.train(1, 1, keep_optimizer=False)
    assert seen == ["a", "b", "c"] * 4


def test_a_batch_passes_normalise_before_mix(site: Site) -> None:
    """(x * 0 + 1) + 1 = 2 everywhere; the other order would give 1."""
    site.add(Piece("a", ("mix",)), "mix", lambda x, y, generator: (x + 1, y))
    site.add(Piece("b", ("normalise",)), "normalise", lambda x, y, generator: (x * 0 + 1, y))
    site.train(1, 1, keep_optimizer=False)
    assert torch.equal(site.trainer.state.output["image"].unique(), torch.tensor([2.0]))


@pytest.mark.parametrize("stage", ["normalise", "normalise_eval", "replace"])
def test_two_parts_in_an_exclusive_stage_are_refused(stage: str, site: Site) -> None:
    """Both are named, and the stage."""
    site.add(Piece("one", (stage,)), stage, lambda *given: given[:2])
    with pytest.raises(ConfigError, match=f"site A: two and one both take the stage '{stage}'"):
        site.add(Piece("two", (stage,)), stage, lambda *given: given[:2])


@pytest.mark.parametrize(
    ("declared", "stage"),
    [((), "add"), (("normalise",), "normalise_eval"), (("normalise_eval",), "normalise"), (("add",), "nowhere")],
)
def test_a_stage_that_is_not_declared_is_refused(declared: tuple[str, ...], stage: str, site: Site) -> None:
    """compose checks what parts declare, so they may use nothing else; normalise_eval is a stage of its own."""
    with pytest.raises(ConfigError, match=rf"part sly adds to the stage '{stage}' but declares"):
        site.add(Piece("sly", declared), stage, lambda *given: given[:2])


def test_a_declared_evaluation_stage_may_be_used_alone(site: Site) -> None:
    """A part that normalises in evaluation only says so and does so."""
    site.add(Piece("p", ("normalise_eval",)), "normalise_eval", lambda x, y, generator: (x * 0, y))
    site.evaluate(1)
    assert not site.evaluator.state.output["image"].any()


def test_replace_comes_before_add_and_the_recorded_loss_has_no_added_term(site: Site) -> None:
    """Replaced by 3, then 10 added: trained on 13, recorded 3; names in the other order change nothing."""
    site.add(Piece("a", ("add",)), "add", _plus(10.0))
    site.add(Piece("z", ("replace",)), "replace", lambda output: output["loss"] * 0 + 3.0)
    _, loss = site.train(1, 1, keep_optimizer=False)
    assert loss == pytest.approx(3.0)
    assert site.trainer.state.output["loss"].item() == pytest.approx(13.0)


def test_the_whole_loss_again_equals_the_steps_and_leaves_no_trace(site: Site) -> None:
    """In replay loss() repeats normalisation, task loss and added terms; random state, statistics, modes stay."""
    found: list[tuple[float, float]] = []
    part = Piece("p", ("normalise", "add", "correct"))

    def again() -> None:
        before = (torch.get_rng_state(), site.model[1].running_mean.clone(), int(site.model[1].num_batches_tracked))
        with site.replay(part):
            found.append((site.loss().item(), site.trainer.state.output["loss"].item()))
            torch.rand(3)
            site.model.eval()
        assert torch.equal(before[0], torch.get_rng_state())
        assert torch.equal(before[1], site.model[1].running_mean)
        assert before[2] == int(site.model[1].num_batches_tracked)
        assert all(module.training for module in site.model.modules())

    site.add(part, "normalise", lambda x, y, generator: (x * 0.5, y))
    site.add(part, "add", _plus(2.0))
    site.add(part, "correct", again)
    site.train(1, 1, keep_optimizer=False)
    assert len(found) == 4
    for repeated, step in found:
        assert repeated == pytest.approx(step, abs=1e-6)


def test_an_extra_pass_changes_no_bit_of_training(sources: dict[str, Any]) -> None:
    """With dropout: the weights after two epochs are those without the extra passes."""
    plain, looked = sources["A"].open(), sources["A"].open()
    part = Piece("p", ("correct",))

    def look() -> None:
        with looked.replay(part):
            looked.loss()

    looked.add(part, "correct", look)
    for opened in (plain, looked):
        opened.seed(0, 1)
        opened.train(1, 2, keep_optimizer=False)
    for key, value in plain.model.state_dict().items():
        assert torch.equal(value, looked.model.state_dict()[key]), key


def test_the_replay_draws_from_the_parts_own_stream(site: Site) -> None:
    """Two parts draw differently, and each draws the same again after the same seed."""
    drawn = []
    for _ in range(2):
        for name in ("a", "b"):
            part = Piece(name, ("correct",))
            if not drawn[1:]:
                site.add(part, "correct", lambda: None)
                site.seed(0, 1)
            with site.replay(part):
                drawn.append(float(torch.rand(())))
        site.seed(0, 1)
    assert drawn[0] == drawn[2]
    assert len({drawn[0], drawn[1]}) == 2


def test_gradients_are_changed_after_backward_in_the_order_perturb_correct_clip(site: Site) -> None:
    """All three see this step's gradient, and the optimizer takes what they leave."""
    seen: list[str] = []
    weight = site.model[0].weight

    def note(name: str) -> Any:
        def look() -> None:
            assert weight.grad is not None
            assert weight.grad.any() or seen
            seen.append(name)
            if name == "clip":
                for parameter in site.model.parameters():
                    parameter.grad.zero_()

        return look

    before = weight.detach().clone()
    for name in ("clip", "perturb", "correct"):
        site.add(Piece(f"part {name}", (name,)), name, note(name))
    site.train(1, 1, keep_optimizer=False)
    assert seen == ["perturb", "correct", "clip"] * 4
    assert torch.equal(before, weight)
