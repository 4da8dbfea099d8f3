"""Mixed precision: what runs in half precision, what never does, and what is refused."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import difference
from torch import Tensor
from variants import Piece, bundle_with

from monai_fedskew.cli.main import main
from monai_fedskew.core.messages import Broadcast
from monai_fedskew.data.synthetic_images import write_synthetic_images
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.precision import Precision
from monai_fedskew.sites.site import Site

ROUND = Settings(rounds=2, choose="last", optimizer_state="keep")
OWN_PASSES = ("fedalign", "fedfa", "fedmix", "fedwon", "gradaug", "harmofl", "hbn", "mixup", "moon", "stochdepth")
GRADIENTS = ("fednova", "scaffold")  # without momentum


def _with_amp(config: dict[str, Any]) -> None:
    config["amp"] = True
    for engine in (config["train"]["trainer"], config["validate"]["evaluator"]):
        engine["amp"] = "@amp"


@pytest.fixture(scope="module")
def mixed_bundle(image_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small images' bundle with an id `amp` that is on."""
    return bundle_with(image_bundle, tmp_path_factory.mktemp("mixed") / "bundle", _with_amp)


@pytest.fixture
def mixed(mixed_bundle: Path, image_study: Path) -> BundleSite:
    """Site A in mixed precision."""
    return BundleSite(mixed_bundle, "A", image_study / "A")


def _messages(text: str, source: BundleSite) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    client, server = Client(parse_method(text), source, ROUND), Server(parse_method(text), ROUND)
    survey = client.survey()
    server.open([survey])
    update = client.fit(server.cast())
    score = client.evaluate(Broadcast(2, update.tensors, server.cast().aux))
    assert score is not None
    states = {"survey": survey, "update": update}
    told = {name: {**message.tensors, **_flat(message.aux)} for name, message in states.items()}
    return {**told, "private": client.private()}, dict(score.metrics)


def _flat(aux: Any) -> dict[str, Tensor]:
    return {f"{part}/{key}": value for part, state in aux.items() for key, value in state.items()}


def test_amp_on_a_cpu_trains_and_scores_in_bfloat16(mixed: BundleSite) -> None:
    """Convolutions run in bfloat16 in training and evaluation; what metrics and handlers get is float32."""
    site = mixed.open()
    seen = []
    site.model.conv1.register_forward_hook(lambda module, inputs, output: seen.append((module.training, output.dtype)))
    site.train(1, 1, keep_optimizer=False)
    site.evaluate(1)
    assert set(seen) == {(True, torch.bfloat16), (False, torch.bfloat16)}
    assert site.trainer.state.output["loss"].dtype == torch.float32
    assert site.evaluator.state.output["pred"].dtype == torch.float32
    assert all(parameter.grad.dtype == torch.float32 for parameter in site.model.parameters())


def test_precision_is_a_choice_of_the_bundle(mixed: BundleSite) -> None:
    """amp: false is float32 bit for bit what the bundle without the id is; amp: true is not, though near."""
    updates = []
    for source in (mixed, replace(mixed, overrides={"amp": False})):
        site = source.open()
        site.seed(0, 1)
        site.train(1, 1, keep_optimizer=False)
        updates.append(site.model.state_dict())
    assert difference(*updates) != ""
    torch.testing.assert_close(updates[0]["fc.weight"], updates[1]["fc.weight"], rtol=0, atol=0.01)


@pytest.mark.parametrize("text", [*OWN_PASSES, *GRADIENTS, "fedbn"])
def test_messages_and_private_state_are_those_of_float32(text: str, mixed: BundleSite) -> None:
    """Names, types and shapes of all that is sent and kept are the same with amp, whatever passes a method makes."""
    source = replace(mixed, overrides={"momentum": 0.0})
    found, score = _messages(text, source)
    expected, _ = _messages(text, replace(source, overrides={**source.overrides, "amp": False}))
    for name, state in found.items():
        kinds = {key: (value.dtype, value.shape, value.device.type) for key, value in state.items()}
        assert kinds == {key: (value.dtype, value.shape, "cpu") for key, value in expected[name].items()}
        assert all(torch.isfinite(value).all() for value in state.values() if value.is_floating_point())
    assert 0 <= score["accuracy"] <= 1


def test_extra_passes_run_in_the_trainers_precision(mixed: BundleSite) -> None:
    """The whole loss again is that of the step, and a part's own pass before the step is in bfloat16 too."""
    site, part, found = mixed.open(), Piece("p", ("mix", "correct")), []

    def own_pass(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        with site.replay(part), torch.no_grad():
            found.append(site.model(inputs).dtype)
        return inputs, targets

    def again() -> None:
        with site.replay(part):
            found.append(site.loss().item() - site.trainer.state.output["loss"].item())

    site.add(part, "mix", own_pass)
    site.add(part, "correct", again)
    site.train(1, 1, keep_optimizer=False)
    assert set(found) == {torch.bfloat16, 0.0}


def test_what_is_outside_of_passes_stays_in_float32(mixed: BundleSite) -> None:
    """No context is left open: a product after a round is float32."""
    mixed.open().train(1, 1, keep_optimizer=False)
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_float16_on_a_cpu_is_refused(mixed_bundle: Path, image_study: Path, tmp_path: Path) -> None:
    """It would need its loss scaled; site, type and what to do are named."""

    def half(config: dict[str, Any]) -> None:
        config["train"]["trainer"]["amp_kwargs"] = {"dtype": "$torch.float16"}

    source = BundleSite(bundle_with(mixed_bundle, tmp_path / "b", half), "A", image_study / "A")
    with pytest.raises(ConfigError, match=r"site A: on a CPU amp: true computes in bfloat16.*torch.float16; leave"):
        source.open()


@pytest.mark.parametrize("amp", ["no", 1, None])
def test_precision_is_on_or_off(amp: object, mixed: BundleSite) -> None:
    """The text no is true to Python."""
    with pytest.raises(ConfigError, match=f"site A: amp is {amp!r}; it must be true or false"):
        replace(mixed, overrides={**mixed.overrides, "amp": amp}).open()


def test_other_devices_are_refused(mixed: BundleSite) -> None:
    """Neither CUDA nor CPU."""
    site = replace(mixed, overrides={"amp": False}).open()
    site.trainer.amp, site.trainer.state.device = True, torch.device("xpu")
    with pytest.raises(ConfigError, match="site A: amp: true works on CUDA and on CPUs, not on xpu; set amp: false"):
        Site("A", site.trainer, site.evaluator)


@pytest.mark.parametrize(("text", "part"), [("fedmix", "fedmix"), ("harmofl", "sharpness")])
def test_gradients_that_are_not_scaled_are_refused_with_a_scaled_loss(
    text: str, part: str, mixed: BundleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA in float16: part, site and option are named when the method meets the site."""
    scaled = Precision("cuda", {}, is_scaled=True)
    monkeypatch.setattr("monai_fedskew.sites.seams.set_precision", lambda *given: scaled)
    with pytest.raises(ConfigError, match=rf"site A: {part} takes gradients of its own.*set amp: false in the bundle"):
        Client(parse_method(text), mixed, ROUND)
    assert Client(parse_method("fedalign"), mixed, ROUND).shared


@pytest.fixture
def scaled(mixed: BundleSite, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Site A as MONAI trains it with a scaler, which torch has for CPUs too; of the passes themselves, in float32."""

    def build(scale: float) -> Site:
        site = replace(mixed, overrides={"amp": False}).open()
        scaler = partial(torch.amp.GradScaler, "cpu", init_scale=scale)
        monkeypatch.setattr(torch.cuda.amp, "GradScaler", scaler)
        site.trainer.amp = True
        site.seed(0, 1)
        return site

    return build


NO_CUDA = pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")  # of autocast("cuda"), in MONAI


@NO_CUDA
def test_parts_see_unscaled_gradients(scaled: Any, mixed: BundleSite) -> None:
    """With a loss scaled by 1024 a part that clips sees the gradients of float32, and the weights come out the same."""
    seen: list[list[Tensor]] = [[], []]
    sites = (replace(mixed, overrides={"amp": False}).open(), scaled(1024.0))
    for site, gradients in zip(sites, seen, strict=True):
        site.seed(0, 1)
        site.add(Piece("p", ("clip",)), "clip", lambda s=site, g=gradients: g.append(s.model.fc.weight.grad.clone()))
        assert site.train(1, 1, keep_optimizer=False)[0] == 2
    for one, other in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(sites[0].model.fc.weight, sites[1].model.fc.weight, rtol=1e-5, atol=1e-7)


@NO_CUDA
def test_a_step_that_is_skipped_leaves_no_trace(scaled: Any) -> None:
    """2^127 times a loss as large as 1024 overflows and is halved until steps are made: only those are known."""
    site, calls = scaled(2.0**127), []

    def shrink() -> None:
        calls.append(1)
        torch._foreach_div_([parameter.grad for parameter in site.model.parameters()], 1024)

    site.add(Piece("a", ("add",)), "add", lambda output: output["loss"] * 1024)
    site.add(Piece("c", ("clip",)), "clip", shrink)
    steps, _ = site.train(1, 8, keep_optimizer=False)
    assert 0 < steps < 8 * 2
    assert len(calls) == steps
    assert int(site.model.bn1.num_batches_tracked) == steps
    assert all(torch.isfinite(value).all() for value in site.model.state_dict().values())


@NO_CUDA
def test_an_overflow_of_the_statistics_is_rolled_back(scaled: Any) -> None:
    """Case 36: one image with an infinite pixel; the step is skipped and running_var is what it was, then goes on."""
    site, batches = scaled(1.0), []

    def spoil(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        batches.append(1)
        return (inputs.clone().index_fill_(0, torch.tensor([0]), torch.inf) if len(batches) == 1 else inputs), targets

    site.add(Piece("p", ("mix",)), "mix", spoil)
    assert site.train(1, 1, keep_optimizer=False)[0] == 1
    assert len(batches) == 2
    assert int(site.model.bn1.num_batches_tracked) == 1
    assert all(torch.isfinite(value).all() for value in site.model.state_dict().values())


@NO_CUDA
def test_a_round_of_skipped_steps_says_so(scaled: Any) -> None:
    """An infinite scale overflows in both steps: no update, and why."""
    with pytest.raises(RoundError, match="site A: every step of round 1 was skipped.*half precision.*amp: false"):
        scaled(torch.inf).train(1, 1, keep_optimizer=False)


def test_the_bundle_of_digits_takes_both_from_the_command_line(tmp_path: Path) -> None:
    """simulate, with the cost trial, test scores and predictions; each gives another model."""
    data = write_synthetic_images(tmp_path / "data", sites=("A", "B"), images=12, size=28)
    call = ["simulate", "digits", "--data", str(data), "--method", "fedbn", "--rounds", "1", "--choose", "last"]
    call += ["--set", "width=0.03", "--set", "batch_size=4", "--set", "folds=3"]
    models = set()
    for setting in ("amp=false", "amp=true", "accumulation_steps=2"):
        out = tmp_path / setting
        main([*call, "--set", setting, "--out", str(out)])
        models.add((out / "sites" / "A" / "model.safetensors").read_bytes())
        assert (out / "sites" / "A" / "predictions.csv").read_text().count("\n") == 5
    assert len(models) == 3
