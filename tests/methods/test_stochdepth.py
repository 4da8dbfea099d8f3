import copy
import gc
import pickle
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from monai.networks import nets
from torch import Tensor, nn

from monai_fedskew.core import Broadcast, adapt_network
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method, stochdepth
from monai_fedskew.methods.adapted import adapted_network
from monai_fedskew.methods.stochdepth import StochasticForward, keep_chances
from monai_fedskew.networks.stages import last_stage, residual_blocks


class Block(nn.Module):
    """A block of one's own that can be taken apart: relu(w x + x)."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.runs = 0

    def shortcut(self, x: Tensor) -> Tensor:
        """Identity."""
        return x

    def branch(self, shortcut: Tensor, x: Tensor) -> Tensor:
        """One weight."""
        self.runs += 1
        return self.weight * x

    def join(self, total: Tensor) -> Tensor:
        """In place, as MONAI's blocks do."""
        return total.relu_()

    def forward(self, x: Tensor) -> Tensor:
        """The whole block."""
        return self.join(self.branch(x, x) + self.shortcut(x))


def blocks(*weights: float) -> nn.Sequential:
    """A network of such blocks."""
    return nn.Sequential(*map(Block, weights))


def adapted(net: nn.Module, **arguments: Any) -> nn.Module:
    """As at a site."""
    return adapt_network(net, stochdepth(**arguments).parts, 0)


def gates(net: nn.Module) -> list[Any]:
    """In order of depth."""
    forwards = [vars(module).get("forward") for module in net.modules()]
    return [forward.gate for forward in forwards if isinstance(forward, StochasticForward)]


def test_evaluation_by_hand() -> None:
    """keep 0.5: p = 0.75 and 0.5. x = 1, weights 2 and 4: 1 + 0.75 * 2 = 2.5, then 2.5 + 0.5 * 4 * 2.5 = 7.5."""
    net = adapted(blocks(2.0, 4.0), keep=0.5).eval()

    assert net(torch.ones(1)).item() == 7.5


def test_training_keeps_or_leaves_out_whole_blocks() -> None:
    """x = 1, weights 2 and 4: both 3 * 5 = 15; the first alone 3, the second alone 5, none 1. Nothing is scaled."""
    net = adapted(blocks(2.0, 4.0), keep=0.5)
    first, second = gates(net)
    found = {}
    for first.is_open in (True, False):
        for second.is_open in (True, False):
            found[first.is_open, second.is_open] = net(torch.ones(1)).item()

    assert found == {(True, True): 15, (True, False): 3, (False, True): 5, (False, False): 1}


def test_a_block_left_out_is_not_run() -> None:
    """Not computed and then thrown away: no call, no gradient; the block before is as alive as ever."""
    net = adapted(blocks(2.0, 4.0), keep=0.5)
    gates(net)[1].is_open = False

    net(torch.ones(1)).backward()

    assert [block.runs for block in net] == [1, 0]
    assert net[0].weight.grad.item() == 1
    assert net[1].weight.grad is None


def test_chances_are_linear_in_depth() -> None:
    """Four blocks, 0.6 at the last: 1 - l/4 * 0.4, or from 1 at the first by thirds; a lone block has the last's."""
    assert keep_chances(4, 0.6) == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert keep_chances(4, 0.6, "official") == pytest.approx([1.0, 1 - 0.4 / 3, 1 - 0.8 / 3, 0.6])
    assert keep_chances(1, 0.6) == pytest.approx([0.6])
    assert keep_chances(1, 0.6, "official") == [1.0]


def test_each_block_is_drawn_once_a_batch_with_its_chance(view) -> None:
    """1000 batches, chances 0.75 and 0.5: within five standard errors, and independently."""
    part, net = stochdepth(keep=0.5).parts[0], adapted(blocks(2.0, 4.0), keep=0.5)
    site = view("A", model=net)
    part.bind(site)
    draws = []

    for _ in range(1000):
        site.batch("mix", torch.ones(1))
        draws.append([gate.is_open for gate in gates(net)])

    share = torch.tensor(draws, dtype=torch.float64)
    assert share.mean(0).tolist() == pytest.approx([0.75, 0.5], abs=5 * 0.5 / 1000**0.5)
    assert share.prod(1).mean().item() == pytest.approx(0.375, abs=5 * 0.5 / 1000**0.5)


def test_a_second_pass_over_the_batch_meets_the_same_draw(view) -> None:
    """The draw belongs to the batch, and a copy of the network follows it; a new round starts with whole blocks."""
    part, net = stochdepth(keep=0.1).parts[0], adapted(blocks(*[1.0] * 6), keep=0.1)
    site = view("A", model=net)
    bound = part.bind(site)
    site.batch("mix", torch.ones(1))

    values = {net(torch.ones(1)).item(), net(torch.ones(1)).item(), copy.deepcopy(net)(torch.ones(1)).item()}

    assert len(values) == 1
    assert values != {64.0}
    bound.receive(Broadcast(2, {}))
    assert net(torch.ones(1)).item() == 64.0


NETWORKS = {
    "resnet": (lambda: nets.ResNet("basic", [1, 2, 1, 1], [4, 8, 8, 8], 2, 1, num_classes=2), 5),
    "bottleneck": (lambda: nets.ResNet("bottleneck", [1] * 4, [2, 2, 4, 4], 3, 1, num_classes=2), 4),
    "padded": (lambda: nets.ResNet("basic", [1] * 4, [4, 8, 8, 8], 2, 1, num_classes=2, shortcut_type="A"), 4),
    "senet": (lambda: nets.SENet(2, 1, "se_resnet_bottleneck", [1] * 4, 1, 16, None, inplanes=8, num_classes=2), 4),
    "unet": (lambda: nets.UNet(2, 1, 2, (4, 8, 8), (2, 2), num_res_units=2), 5),
    "segresnet": (lambda: nets.SegResNet(2, 8, blocks_down=(1, 1, 1), blocks_up=(1, 1)), 5),
    "vnet": (lambda: nets.VNet(2, 1, 2), 8),
    "dynunet": (
        lambda: nets.DynUNet(2, 1, 2, [3] * 4, [1, 2, 2, 2], [2] * 3, [4, 8, 8, 8], res_block=True),
        4,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_monai_train_with_blocks_left_out(name) -> None:
    """Open gates change no bit; with every block left out a step works, and what was left out has no gradient."""
    build, count = NETWORKS[name]
    torch.manual_seed(0)
    plain = build()
    net = adapted(copy.deepcopy(plain), keep=0.5)
    x = torch.randn(2, 1, *[32 if name == "senet" else 16] * (3 if name == "bottleneck" else 2))

    assert list(net.state_dict()) == list(plain.state_dict())
    assert len(gates(net)) == len(residual_blocks(net)) == count
    outputs = []
    for model in (plain, net):
        torch.manual_seed(1)  # VNet has dropout
        outputs.append(model(x))
    assert torch.equal(*outputs)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    for gate in gates(net):
        gate.is_open = False
    net(x).square().sum().backward()
    inside = tuple(f"{block}." for block in residual_blocks(net))
    branches = [name for name, p in net.named_parameters() if p.grad is None and name.startswith(inside)]
    assert branches
    changed = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
    layers = {name.rpartition(".")[0] for name in branches}
    assert not {key for key in changed if key.rpartition(".")[0] in layers}


def test_batch_norm_of_a_block_left_out_keeps_its_statistics() -> None:
    """Its counter stands still; that of the projection of the shortcut, which is run, does not."""
    net = adapted(NETWORKS["resnet"][0](), keep=0.5)
    for gate in gates(net):
        gate.is_open = False

    net(torch.randn(2, 1, 16, 16))

    assert net.layer2[0].bn1.num_batches_tracked == 0
    assert net.layer2[0].downsample[1].num_batches_tracked == 1


def test_the_last_stage_of_an_adapted_network_is_still_known() -> None:
    """Types and names of modules do not change."""
    assert last_stage(adapted(NETWORKS["resnet"][0](), keep=0.5)) == "layer4"


def test_a_network_survives_pickling_and_is_freed_at_once() -> None:
    """A block and its new forward do not hold each other."""
    net = adapted(blocks(2.0, 4.0), keep=0.5).eval()
    other = pickle.loads(pickle.dumps(net))
    assert other(torch.ones(1)).item() == 7.5
    assert gates(other)[0] is not gates(net)[0]
    is_alive = weakref.ref(net[0])
    gc.disable()
    try:
        del net
        assert is_alive() is None
    finally:
        gc.enable()


def test_keep_one_changes_and_attaches_nothing(view) -> None:
    """FedAvg bit for bit, at no cost, on any network."""
    net = nn.Linear(1, 1)
    site = view("A", model=net)

    assert adapted(net, keep=1.0) is net
    stochdepth(keep=1.0).parts[0].bind(site)

    assert site.stages == {}


@pytest.mark.parametrize(
    "net", [nn.Linear(2, 2), nets.UNet(2, 1, 2, (4, 8), (2,)), nets.DenseNet(2, 1, 2, block_config=(1,))]
)
def test_networks_without_residual_blocks_are_refused(net) -> None:
    """Vectors, a U-Net without residual units, dense connections."""
    with pytest.raises(ConfigError, match=rf"method stochdepth: {type(net).__name__} has no residual blocks"):
        adapted(net)


def test_a_network_that_was_not_adapted_is_refused(view) -> None:
    """Else nothing would ever be left out."""
    with pytest.raises(ConfigError, match="site A: stochdepth finds no block to leave out; adapt the network first"):
        stochdepth().parts[0].bind(view("A", model=blocks(1.0)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "method stochdepth: keep=0 must be a number above 0 and at most 1"),
        ({"keep": 1.5}, r"keep=1\.5 must be a number above 0"),
        ({"keep": True}, "keep=True must be a number above 0"),
        ({"variant": "code"}, "variant='code' must be one of paper, official"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message) -> None:
    """The value seen and what to do."""
    with pytest.raises(ConfigError, match=message):
        stochdepth(**arguments)


def test_a_site_is_scored_with_scaled_branches(image_sources) -> None:
    """The weights a run ends with, in a plain network, with p_l branch + shortcut written out: the same accuracy."""
    outcome = simulate(parse_method("stochdepth:keep=0.2"), image_sources, Settings(rounds=2, choose="last"))
    source = image_sources["A"]
    site = source.open()
    site.model.load_state_dict(outcome.cast.tensors)
    site.model.eval()
    batch = next(iter(site.evaluator.data_loader))

    def forward(block, x, p):
        branch = block.bn2(block.conv2(block.act(block.bn1(block.conv1(x)))))
        return (p * branch + (x if block.downsample is None else block.downsample(x))).relu()

    with torch.no_grad():
        x = site.model.act(site.model.bn1(site.model.conv1(batch["image"])))
        for p, layer in zip((0.8, 0.6, 0.4, 0.2), ("layer1", "layer2", "layer3", "layer4"), strict=True):
            x = forward(getattr(site.model, layer)[0], x, p)
        logits = site.model.fc(site.model.avgpool(x).flatten(1))
    accuracy = (logits.argmax(1) == batch["label"]).float().mean().item()
    score = next(s for s in outcome.history.scores if (s.site, s.round, s.split) == ("A", 2, "validation"))
    assert score.metrics["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    net = adapted_network(source.open().model, "stochdepth:keep=0.2", 0)  # as the exported configuration builds it
    net.load_state_dict(outcome.cast.tensors)
    torch.testing.assert_close(net.eval()(batch["image"]), logits)


@pytest.mark.parametrize("other", ["scaffold", "fednova", "harmofl", "fedprox:mu=0.1", "fedbn"])
def test_it_composes(image_sources, other) -> None:
    """Parameters without a gradient in a step trouble no method that changes gradients or counts steps."""
    sources = {name: replace(image_sources[name], overrides={"momentum": 0.0}) for name in ("A", "B")}

    outcome = simulate(parse_method(f"stochdepth:keep=0.1+{other}"), sources, Settings(rounds=2, choose="last"))

    assert {event.kind for event in outcome.history.events} == {"trained"}
    assert all(value.isfinite().all() for value in outcome.last.values())
