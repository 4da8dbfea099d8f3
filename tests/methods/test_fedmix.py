import math

import pytest
import torch
from monai.data import MetaTensor
from monai.losses import DiceCELoss
from torch import nn

from monai_fedskew.core import Broadcast
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, DataError, RoundError, StateError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.methods.fedmix import fedmix


def site_of(view, images, labels, *, model, loss=None, subjects=None, batch=1024):
    """A site that also knows its labels."""
    site = view("A", list(images.split(batch)), model=model, subjects=subjects)
    site.loss_function = nn.CrossEntropyLoss() if loss is None else loss
    site.labelled_examples = lambda: zip(images.split(batch), labels.split(batch), strict=True)
    return site


def vectors(n=20):
    """Examples of two features, whose first one is their number, and labels of two classes."""
    return torch.stack([torch.arange(float(n)), torch.randn(n)], 1), torch.arange(n) % 2


def trained(site, method, inputs, labels, memory):
    """The loss of one batch as the trainer would make it, and the network's output."""
    bound = method.parts[0].bind(site)
    bound.receive(Broadcast(1, {}, {"fedmix": memory}))
    image, targets = site.stages["mix"](inputs, labels, site.generator)
    output = {"image": image, "label": targets, "pred": site.model(image)}
    output["loss"] = site.loss_function(output["pred"], targets).mean()
    return site.stages["replace"](output), output


def test_loss_and_gradient_by_hand(view) -> None:
    """f = w x, w = 2, squared error, x = 3, y = 1, mean (4, 2), l = 1/4: x' = 2.25, f = 4.5.

    L(y) = 3.5^2 = 12.25, L(y_) = 2.5^2 = 6.25, slope 2 3.5 w = 14, term 14 4 = 56:
    3/4 12.25 + 1/4 (6.25 + 56) = 24.75.
    By w: 2 3.5 2.25 = 15.75 and 2 2.5 2.25 = 11.25; the term is 2 (w x' - y) w x_, by w 2 4 (2 w x' - y) = 64:
    3/4 15.75 + 1/4 (11.25 + 64) = 30.625. Two equal samples give the same means.
    """
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    site = site_of(view, torch.zeros(1, 1), torch.zeros(1, 1), model=net, loss=nn.MSELoss())
    memory = {"B/inputs": torch.tensor([[4.0]]), "B/labels": torch.tensor([[2.0]])}

    loss, _ = trained(site, fedmix(lam=0.25), torch.full((2, 1), 3.0), torch.ones(2, 1), memory)
    loss.backward()

    assert loss.item() == 24.75
    assert net.weight.grad.item() == 30.625


def test_first_order_in_lambda_of_mixup_with_the_mean(view) -> None:
    """The loss differs from plain mixup with (x_, y_) by less than lambda squared times a constant."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    inputs, labels = torch.randn(6, 2).double(), torch.arange(6) % 3
    mean, share = torch.tensor([[0.5, -1.0]]), torch.tensor([[0.2, 0.5, 0.3]])
    errors = []
    for lam in (0.02, 0.01):
        site = site_of(view, inputs, labels, model=net)
        loss, _ = trained(site, fedmix(lam=lam), inputs, labels, {"B/inputs": mean, "B/labels": share})
        pred = net((1 - lam) * inputs + lam * mean)
        both = nn.functional.cross_entropy(pred, labels), nn.functional.cross_entropy(pred, share.double().expand(6, 3))
        errors.append(abs(loss - ((1 - lam) * both[0] + lam * both[1])).item())

    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("batch", [1024, 7])
def test_means_are_those_of_distinct_subjects(view, batch) -> None:
    """Ten subjects of two examples, means of five: each mean is over five subjects, one example of each."""
    images, labels = vectors()
    site = site_of(view, images, labels, model=nn.Linear(2, 2), subjects=[i // 2 for i in range(20)], batch=batch)

    told = fedmix(mean_batch=5).parts[0].bind(site).survey()

    assert told["inputs"].shape == told["labels"].shape == (4, 2)
    assert told["inputs"].mean(0) == pytest.approx(images.mean(0))  # each example is in one mean
    assert torch.allclose(told["labels"].sum(1), torch.ones(4))
    assert told["labels"].mean(0).tolist() == pytest.approx([0.5, 0.5])


def test_a_team_stays_together_in_all_its_means(view) -> None:
    """Subjects are told apart by their first feature: the two means of a team are equal in it, and so in every run."""
    subjects = torch.arange(10).repeat_interleave(2)
    images = torch.stack([2.0**subjects, torch.randn(20)], 1)
    surveys = [
        fedmix(mean_batch=5).parts[0].bind(site_of(view, images, subjects % 2, model=net, subjects=subjects.tolist()))
        for net in (nn.Linear(2, 2), nn.Linear(2, 2))
    ]

    first, second = (bound.survey()["inputs"] for bound in surveys)

    assert len(set(first[:, 0].tolist())) == 2
    assert len(set(first[:, 1].tolist())) == 4
    assert torch.equal(first, second)


def test_who_is_left_over_is_in_no_mean_and_the_cap_holds(view) -> None:
    """Seven examples give one mean of five; twenty give at most two with means=2."""
    for n, means, expected in ((7, 16, 1), (20, 2, 2)):
        site = site_of(view, *vectors(n), model=nn.Linear(2, 2))
        assert len(fedmix(means=means).parts[0].bind(site).survey()["inputs"]) == expected


def test_too_few_subjects_are_not_surveyed(view) -> None:
    """Eight examples of four people; the number itself stays at the site."""
    site = site_of(view, *vectors(8), model=nn.Linear(2, 2), subjects=[0, 0, 1, 1, 2, 2, 3, 3])

    with pytest.raises(RoundError, match="site A: fewer training subjects than mean_batch=5; .* shared") as told:
        fedmix().parts[0].bind(site).survey()
    assert "4" not in str(told.value)


@pytest.mark.parametrize("spatial", [(4, 4), (4, 4, 4)])
def test_segmentation_shares_mean_masks_and_trains(view, spatial) -> None:
    """MONAI's Dice on class indices, MetaTensors, a convolution: shares are in [0, 1] and sum to 1 at every voxel."""
    conv = nn.Conv2d if len(spatial) == 2 else nn.Conv3d
    net = nn.Sequential(conv(1, 3, 1), (nn.BatchNorm2d if len(spatial) == 2 else nn.BatchNorm3d)(3))
    images, masks = MetaTensor(torch.randn(10, 1, *spatial)), MetaTensor(torch.randint(3, (10, 1, *spatial)).float())
    site = site_of(view, images, masks, model=net, loss=DiceCELoss(to_onehot_y=True, softmax=True))
    site.labelled_examples = lambda: iter([(images, masks)])
    bound = fedmix().parts[0].bind(site)
    told = bound.survey()

    loss, output = trained(site, fedmix(lam=0.1), images[:2], masks[:2], fedmix().parts[0].merge({}, {"A": told}, 1))
    loss.backward()

    assert told["labels"].shape == (2, 3, *spatial)
    assert torch.allclose(told["labels"].sum(1), torch.ones(2, *spatial))
    assert torch.allclose(output["image"].detach(), 0.9 * images[:2])
    assert all(p.grad.isfinite().all() for p in net.parameters())
    assert net.training


def test_pairs_are_drawn_over_the_means_of_all_sites(view) -> None:
    """Own included; another one at each step. The blend with f(x) = x tells which."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    site = site_of(view, torch.zeros(1, 1), torch.zeros(1, 1), model=net, loss=nn.MSELoss())
    memory = {f"{name}/inputs": torch.zeros(2, 1) for name in "AB"}
    memory |= {"A/labels": torch.tensor([[1.0], [2.0]]), "B/labels": torch.tensor([[3.0], [4.0]])}
    bound = fedmix(lam=0.5).parts[0].bind(site)
    bound.receive(Broadcast(1, {}, {"fedmix": memory}))
    found = []
    for _ in range(60):
        image, _ = site.stages["mix"](torch.zeros(1, 1), torch.zeros(1, 1), site.generator)
        pred = net(image)
        loss = site.stages["replace"]({"image": image, "pred": pred, "loss": pred.square().mean()})
        found.append(loss.item())  # 1/2 (0 - y_)^2

    assert set(found) == {0.5, 2.0, 4.5, 8.0}


def test_lambda_zero_attaches_and_sends_nothing(view) -> None:
    """FedAvg bit for bit, also in what leaves the site."""
    site, part = view("A"), fedmix(0).parts[0]

    assert part.bind(site).survey() == {}
    assert site.stages == {}
    assert part.merge({}, {}, 4) == {}
    assert not fedmix(0).refuses


def test_malformed_means_name_the_site() -> None:
    """Entries, counts and types, a second survey, a site that told nothing, another size of examples."""
    part, good = fedmix(means=2).parts[0], {"inputs": torch.zeros(1, 3), "labels": torch.zeros(1, 2)}
    memory = part.merge({}, {"A": good}, 1)

    for report in (
        {"inputs": good["inputs"]},
        {**good, "labels": torch.zeros(2, 2)},
        {"inputs": torch.zeros(3, 3), "labels": torch.zeros(3, 2)},
        {**good, "inputs": torch.zeros(1, 3, dtype=torch.int64)},
        {**good, "labels": torch.tensor(1.0)},
    ):
        with pytest.raises(StateError, match="site B: fedmix means"):
            part.merge(memory, {"B": report}, 2)
    with pytest.raises(StateError, match="site A: fedmix means a second time"):
        part.merge(memory, {"A": good}, 1)
    with pytest.raises(StateError, match="fedmix has means of A only, of 2 sites"):
        part.merge(memory, {}, 2)
    with pytest.raises(StateError, match=r"fedmix inputs are of shape \(4,\) at site B, of \(3,\) at site A"):
        part.merge(memory, {"B": {**good, "inputs": torch.zeros(1, 4)}}, 2)
    assert sorted(part.merge(memory, {"B": good}, 2)) == ["A/inputs", "A/labels", "B/inputs", "B/labels"]


def test_training_on_another_size_than_surveyed_is_refused(view) -> None:
    """As with random patches of whole images; both sizes are named."""
    site = site_of(view, *vectors(), model=nn.Linear(3, 2))
    memory = {"A/inputs": torch.zeros(1, 2), "A/labels": torch.zeros(1, 2)}

    with pytest.raises(DataError, match=r"site A: fedmix has averages of shape \(2,\), but trains on \(3,\)"):
        trained(site, fedmix(), torch.zeros(2, 3), torch.tensor([0, 1]), memory)


def test_without_survey_nothing_is_mixed(view) -> None:
    """An error, not plain training."""
    site = site_of(view, *vectors(), model=nn.Linear(2, 2))
    fedmix().parts[0].bind(site).receive(Broadcast(1, {}))

    with pytest.raises(StateError, match="site A: fedmix has no broadcast to draw from; survey the site first"):
        site.stages["mix"](torch.zeros(2, 2), torch.zeros(2), site.generator)


def test_a_late_site_adds_its_means(sources) -> None:
    """It is surveyed before its first round, and all sites draw from its means from then on."""
    method, settings = parse_method("fedmix:mean_batch=3"), Settings(rounds=2, choose="last")
    clients = {name: Client(method, sources[name], settings) for name in "AB"}
    server = Server(method, settings)
    server.open([clients["A"].survey()])
    server.absorb([clients["A"].fit(server.cast())])

    server.open([clients["B"].survey()])
    server.absorb([client.fit(server.cast()) for client in clients.values()])

    assert {key.split("/")[0] for key in server.cast().aux["fedmix"]} == {"A", "B"}


def test_on_images_it_trains_and_is_not_fedavg(image_sources) -> None:
    """A ResNet with batch norm under double backward."""
    settings = Settings(rounds=1, choose="last")
    plain, mixed = (simulate(parse_method(text), image_sources, settings).last for text in ("fedavg", "fedmix:lam=0.2"))

    assert all(value.isfinite().all() for value in mixed.values())
    assert not all(torch.equal(plain[key], mixed[key]) for key in plain)


@pytest.mark.parametrize("other", ["fedrdn", "sitenorm", "mixup"])
def test_what_it_cannot_stand_with_is_refused(other) -> None:
    """Raw means in normalised inputs; two replacements of the loss. In both orders."""
    for text in (f"fedmix+{other}", f"{other}+fedmix"):
        with pytest.raises(ConfigError, match="averages of raw inputs|stage 'replace'"):
            parse_method(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lam": 1.0}, r"method fedmix: lam=1\.0 must be a number of at least 0 and below 1"),
        ({"lam": math.nan}, "lam=nan must be"),
        ({"mean_batch": 1}, "method fedmix: mean_batch=1 must be a whole number, 2 or more"),
        ({"means": 0}, "method fedmix: means=0 must be a whole number, 1 or more"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message) -> None:
    """Name, value and range."""
    with pytest.raises(ConfigError, match=message):
        fedmix(**arguments)
