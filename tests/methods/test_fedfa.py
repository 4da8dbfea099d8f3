import pytest
import torch
from laws import assert_same, difference
from monai.engines.utils import IterationEvents
from monai.networks.nets import ResNet, UNet
from torch import nn

from monai_fedskew.core import Broadcast, all_keys
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, StateError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS, parse_method
from monai_fedskew.methods.fedfa import channel_moments, fedfa, restyle

LAST = {"choose": "last"}
STAGES = ["layer1", "layer2"]


class Stages(nn.Module):
    """Two stages that do nothing, so that what comes out is what the augmentation made."""

    def __init__(self, channels=2) -> None:
        super().__init__()
        self.layer1, self.layer2 = (nn.Conv1d(channels, channels, 1, bias=False) for _ in range(2))
        for layer in (self.layer1, self.layer2):
            nn.init.dirac_(layer.weight)

    def forward(self, x):
        """Yield the maps of the second stage."""
        return self.layer2(self.layer1(x))


def at(view, net, method=None, told=None):
    """A site in its second round; `begin` starts a batch."""
    site = view("A", model=net)
    site.stream = lambda part: site.generator
    part = (method or fedfa(p=1.0)).parts[0]
    bound = part.bind(site)
    bound.receive(Broadcast(2, {}, {"fedfa": told} if told else {}))
    return site, bound


def begin(site, images):
    """The trainer takes a batch."""
    site.stages["mix"](images, torch.zeros(len(images)), site.generator)
    return images


def test_one_map_resampled_by_hand() -> None:
    """Two examples of one channel: (0, 2) has m = 1, s = 1, (3, 9) has m = 6, s = 3. V_m = 12.5, V_s = 2. With gamma =
    (1, 0.125) the spreads are sqrt(25) = 5 and sqrt(2.25) = 1.5. Noise 1 and 2 for the first, 0 and -1 for the second:
    m' = 1 + 5 = 6, s' = 1 + 3 = 4: (6 - 4, 6 + 4) = (2, 10); m' = 6, s' = 3 - 1.5 = 1.5: (6 - 1.5, 6 + 1.5)."""
    maps = torch.tensor([[[0.0, 2.0]], [[3.0, 9.0]]])
    noise = torch.tensor([[[1.0], [0.0]], [[2.0], [-1.0]]])

    out = restyle(maps, channel_moments(maps), torch.tensor([[1.0], [0.125]]), noise)

    torch.testing.assert_close(out, torch.tensor([[[2.0, 10.0]], [[4.5, 7.5]]]), rtol=0, atol=1e-5)


def test_the_site_uses_what_the_server_tells(view) -> None:
    """With gamma (8, 0) for the means of two like channels, the first spreads sqrt(9) = 3 times as far."""
    net = Stages().train()
    base = torch.randn(2000, 1, 4, generator=torch.Generator().manual_seed(0))
    images = base.expand(2000, 2, 4)
    site, _ = at(view, net, told=dict.fromkeys(STAGES, torch.tensor([[8.0, 0.0]] * 2)))

    out = net.layer1(begin(site, images))

    moved = out.mean(2) - images.mean(2)
    assert (moved[:, 0].std() / moved[:, 1].std()).item() == pytest.approx(3.0, abs=0.15)


def test_before_two_sites_have_reported_gamma_is_one(view) -> None:
    """The same as telling ones; also where the server knows one site only."""
    part, images = fedfa().parts[0], torch.randn(6, 2, 4)
    assert part.tell(part.merge({}, {"A": {"layer1": torch.tensor([[0.0], [1.0]])}}, 2)) == {}
    outs = []
    for told in (None, dict.fromkeys(STAGES, torch.ones(2, 2))):
        net = Stages().train()
        site, _ = at(view, net, told=told)
        outs.append(net(begin(site, images)))

    assert torch.equal(*outs)
    assert not torch.equal(outs[0], images)


def test_a_second_pass_of_the_batch_meets_the_same_draw(view) -> None:
    """And the next batch another one; the running means count a batch once."""
    net, images = Stages().train(), torch.randn(6, 2, 4)
    site, bound = at(view, net)

    first = net(begin(site, images))
    counted = bound.private()
    again = net(images)

    assert torch.equal(first, again)
    assert difference(counted, bound.private()) == ""
    assert not torch.equal(first, net(begin(site, images)))


def test_acts_on_training_passes_of_the_batch_only(view) -> None:
    """Not in evaluation, not without gradient, not on other examples, not before the first batch or after the last."""
    net, images = Stages().train(), torch.randn(6, 2, 4)
    site, bound = at(view, net)

    assert torch.equal(net(images), images)
    begin(site, images)
    assert torch.equal(net(images[:3]), images[:3])
    assert torch.equal(net.eval()(images), images)
    with torch.no_grad():
        assert torch.equal(net.train()(images), images)
    assert not torch.equal(net(images), images)
    bound.end_round()
    assert torch.equal(net(images), images)


def test_a_batch_of_one_stays_as_it_is(view) -> None:
    """It has no variance; it counts in the running means all the same."""
    net, image = Stages().train(), torch.tensor([[[0.0, 2.0], [3.0, 9.0]]])
    site, bound = at(view, net)

    out = net(begin(site, image))

    assert torch.equal(out, image)
    assert bound.end_round()["layer1"][0].tolist() == [1.0, 6.0]


def test_running_means_by_hand(view) -> None:
    """Momentum 0.75, p small: the first batch of means 2 begins, then 0.75 * 2 + 0.25 * 6 = 3; stds 1, then
    0.75 * 1 + 0.25 * 5 = 2. Batches that are not augmented count."""
    net = Stages(1).train()
    site, bound = at(view, net, fedfa(p=1e-9, momentum=0.75))

    net(begin(site, torch.tensor([[[1.0, 3.0]], [[1.0, 3.0]]])))
    net(begin(site, torch.tensor([[[1.0, 11.0]], [[1.0, 11.0]]])))

    told = bound.end_round()
    assert told["layer1"][0].tolist() == pytest.approx([3.0])
    assert told["layer1"][1].tolist() == pytest.approx([2.0], abs=1e-5)
    assert sorted(told) == STAGES


def test_each_stage_draws_with_probability_p(view) -> None:
    """Of 300 batches and two stages, p = 0.25 leaves both alone in 0.75^2 = 56 %, within five standard errors."""
    net, images = Stages().train(), torch.randn(4, 2, 4)
    site, _ = at(view, net, fedfa(p=0.25))

    untouched = sum(torch.equal(net(begin(site, images)), images) for _ in range(300))

    assert untouched / 300 == pytest.approx(0.5625, abs=0.145)


@pytest.mark.parametrize("shape", [(4, 2, 3, 3), (4, 2, 3, 3, 3), (4, 2, 1, 1)])
def test_constant_maps_and_single_voxels_stay_finite(shape) -> None:
    """Std 0, variance 0 over the batch, in two and three dimensions: finite values and gradients."""
    maps = torch.full(shape, 5.0, requires_grad=True)
    noise = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(0))

    out = restyle(maps, channel_moments(maps), torch.ones(2, 2), noise)
    out.square().sum().backward()

    assert torch.isfinite(out).all()
    assert torch.isfinite(maps.grad).all()
    assert (out - 5).abs().max() < 0.02  # what eps alone can move


def test_half_precision_maps_keep_their_type(view) -> None:
    """Statistics are taken in float32, as under automatic mixed precision."""
    net, images = Stages().bfloat16().train(), torch.randn(6, 2, 4).bfloat16()
    site, bound = at(view, net)

    out = net(begin(site, images))

    assert out.dtype == torch.bfloat16
    assert bound.end_round()["layer1"].dtype == torch.float32


def test_p_zero_attaches_nothing(view) -> None:
    """Not even to a network it would refuse."""
    site = view("A")

    fedfa(p=0).parts[0].bind(site)

    assert site.stages == {}


def test_vectors_and_unknown_networks_are_refused(view) -> None:
    """With the reason and the site."""
    with pytest.raises(ConfigError, match="site A: fedfa needs a network with convolutions"):
        fedfa().parts[0].bind(view("A"))
    with pytest.raises(ConfigError, match="site A: fedfa: Sequential has no known stages"):
        fedfa().parts[0].bind(view("A", model=nn.Sequential(nn.Conv2d(1, 1, 1))))


def test_a_stage_without_maps_is_refused(view) -> None:
    """A module of that name which yields something else."""
    net = Stages()
    net.layer2 = nn.Sequential(net.layer2, nn.Flatten())
    site, _ = at(view, net.train())

    with pytest.raises(ConfigError, match="site A: fedfa: stage layer2 does not yield feature maps"):
        net(begin(site, torch.randn(2, 2, 4)))


@pytest.mark.parametrize(
    ("build", "stages", "shape"),
    [
        (lambda: ResNet("basic", [1] * 4, [4] * 4, n_input_channels=1, num_classes=2), 4, (2, 1, 16, 16, 16)),
        (lambda: UNet(2, 1, 2, (4, 8, 16), (2, 2), norm="batch"), 3, (2, 1, 16, 16)),
    ],
    ids=["ResNet 3-D", "UNet 2-D"],
)
def test_real_networks_are_augmented_at_every_stage(view, build, stages, shape) -> None:
    """Their moments are reported; the loss has a gradient in every parameter."""
    net = build().train()
    site, bound = at(view, net)

    net(begin(site, torch.randn(shape))).sum().backward()

    assert len(bound.end_round()) == stages
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_a_broadcast_of_other_stages_is_refused(view) -> None:
    """Before any training."""
    with pytest.raises(StateError, match="site A: fedfa's broadcast lacks 1 keys"):
        at(view, Stages(), told={"layer1": torch.ones(2, 2)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedfa:p=1.5", r"method fedfa: p=1\.5 must be a number of at least 0 and at most 1"),
        ("fedfa:p=nan", "method fedfa: p=nan must be a number of at least 0 and at most 1"),
        ("fedfa:momentum=1", r"method fedfa: momentum=1\.0 must be a number of at least 0 and below 1"),
        ("fedfa:variant=mine", "method fedfa: variant='mine' must be one of paper, official"),
    ],
)
def test_wrong_text_is_refused(text, message) -> None:
    """The error names method, parameter, value and what is allowed."""
    with pytest.raises(ConfigError, match=message):
        parse_method(text)


@pytest.mark.parametrize("arguments", [{"p": True}, {"p": "1"}, {"momentum": False}, {"variant": "mine"}])
def test_wrong_values_in_python_are_refused(arguments) -> None:
    """The factory checks for itself."""
    with pytest.raises(ConfigError, match=f"method fedfa: {next(iter(arguments))}="):
        METHODS["fedfa"](**arguments)


def test_all_entries_are_shared() -> None:
    """FedFA changes training and adds messages."""
    assert fedfa().share == all_keys()


def test_sites_learn_of_each_other(image_sources) -> None:
    """On a real bundle: in round 2 gamma tells the variants apart; one tensor a stage crosses, with "official" none."""
    sites = {name: image_sources[name] for name in "AB"}

    paper, official = (
        simulate(fedfa(p=1.0, variant=variant), sites, Settings(rounds=2, **LAST)) for variant in ("paper", "official")
    )

    assert difference(paper.cast.tensors, official.cast.tensors) != ""
    stages = {f"layer{i}" for i in (1, 2, 3, 4)}
    assert set(paper.cast.aux["fedfa"]) == stages
    assert set(paper.private["A"]) - set(official.private["A"]) == {f"part.fedfa/{key}" for key in stages}
    assert official.cast.aux == {}


def test_the_whole_loss_is_repeatable(image_sources) -> None:
    """site.loss() is the first pass's loss: same draw, same batch statistics (what a second pass rests on)."""
    client = Client(fedfa(p=1.0), image_sources["A"], Settings(rounds=1))
    site, trainer = client.site, client.site.trainer
    client._receive(Broadcast(1, client.survey().tensors))
    again = []

    def listen() -> None:
        with site.replay(fedfa(p=1.0).parts[0]):
            again.append((trainer.state.output["loss"].item(), site.loss().item()))

    trainer.add_event_handler(IterationEvents.LOSS_COMPLETED, listen)
    site.train(1, 1, keep_optimizer=False)

    assert again
    assert all(first == second for first, second in again)


def test_moon_beside_it_rebuilds_alike(image_sources) -> None:
    """Its reference passes are not augmented and draw nothing; kept and rebuilt sites agree bit for bit."""
    method, settings = parse_method("fedfa:p=0.7+moon:dim=8+fedbn"), Settings(rounds=3, fraction=0.5, **LAST)

    sites = {name: image_sources[name] for name in "ABC"}
    kept = simulate(method, sites, settings)

    assert_same(kept, simulate(method, sites, settings, max_alive=1))
