import inspect

import pytest
from torch import nn

from monai_fedskew.core import compose, parse
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import METHODS, fedavg, local, pooled

NAMES = sorted(METHODS)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"fedavg", "local", "pooled"}))
def test_fedavg_composes_to_the_method_itself(name: str) -> None:
    """compose(fedavg, m) is m but for the name; the baselines take no federated method and are left out."""
    method, composed = METHODS[name](), compose(fedavg(), METHODS[name]())

    assert (composed.share, composed.parts, composed.aggregate, composed.scope) == (
        method.share,
        method.parts,
        method.aggregate,
        method.scope,
    )


@pytest.mark.parametrize("name", NAMES)
def test_factory_is_documented(name: str) -> None:
    """The docstring has a summary of one sentence, a paper, and every parameter."""
    text = inspect.getdoc(METHODS[name]) or ""

    assert text.splitlines()[0].endswith(".")
    assert "\nPaper: " in text
    assert all(f"    {parameter}: " in text for parameter in inspect.signature(METHODS[name]).parameters)


@pytest.mark.parametrize("name", NAMES)
def test_factory_lives_in_a_file_of_its_name(name: str) -> None:
    """One file, one method, one name."""
    assert METHODS[name]().name == name
    assert METHODS[name].__module__ == f"monai_fedskew.methods.{name}"


@pytest.mark.parametrize("text", ["fedrdn+sitenorm", "sitenorm+fedbn+fedrdn"])
def test_two_normalisations_are_refused(text: str) -> None:
    """One batch cannot be normalised twice."""
    with pytest.raises(ConfigError, match="both take the stage 'normalise'"):
        parse(text, METHODS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedprox:mu=-1", r"method fedprox: mu=-1\.0 must be a finite number of at least 0"),
        ("fedprox:mu=nan", "method fedprox: mu=nan must be a finite number of at least 0"),
        ("fedprox:mu=inf", "method fedprox: mu=inf must be a finite number of at least 0"),
        ("fedprox:mu=much", "method fedprox: mu='much' must be a number"),
        ("fedprox:nu=1", "method fedprox: unknown parameter 'nu'; it takes mu, variant"),
        ("fedprox:variant=mine", "method fedprox: variant='mine' must be one of paper, official"),
        ("fedbn:norms=group", "method fedbn: norms='group' must be one of batch, all"),
        ("fedbn:allow_none=maybe", "method fedbn: allow_none='maybe' must be true or false"),
        ("fedbn:variant=official,norms=all", "takes neither norms nor allow_none"),
        ("silobn:allow_none=1", "method silobn: allow_none='1' must be true or false"),
        ("fedrdn:std=robust", "method fedrdn: std='robust' must be one of image, pooled"),
        ("fedrdn:ddof=2", "method fedrdn: ddof=2 must be 0 or 1"),
        ("sitenorm:ddof=-1", "method sitenorm: ddof=-1 must be 0 or 1"),
        ("fedavg:mu=1", "method fedavg: unknown parameter 'mu'; it takes no parameters"),
        ("fedbm", "unknown method 'fedbm'; did you mean fedbn"),
        ("fedbn+fedbn", "fedbn is given twice"),
        ("local+fedbn", "the baseline local only takes a normalisation in front, not fedbn"),
        ("pooled+fedprox", "the baseline pooled only takes a normalisation in front, not fedprox"),
        ("local+pooled", "the baseline local only takes a normalisation in front, not pooled"),
    ],
)
def test_wrong_text_is_refused(text: str, message: str) -> None:
    """The error names method, parameter, value and what is allowed."""
    with pytest.raises(ConfigError, match=message):
        parse(text, METHODS)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fedprox", {"mu": True}),
        ("fedprox", {"mu": "0.1"}),
        ("fedprox", {"variant": "mine"}),
        ("fedbn", {"norms": "group"}),
        ("fedbn", {"allow_none": 1}),
        ("fedbn", {"variant": "mine"}),
        ("silobn", {"allow_none": None}),
        ("sitenorm", {"std": "robust"}),
        ("fedrdn", {"std": "robust"}),
        ("fedrdn", {"ddof": True}),
        ("fedrdn", {"variant": "mine"}),
    ],
)
def test_wrong_values_in_python_are_refused(name: str, arguments: dict[str, object]) -> None:
    """Factories check for themselves, not only the parser."""
    with pytest.raises(ConfigError, match=f"method {name}: {next(iter(arguments))}="):
        METHODS[name](**arguments)


def test_a_none_value_is_written_none() -> None:
    """The default can be written out."""
    assert parse("fedrdn:std=none", METHODS).parts == METHODS["fedrdn"]().parts


def test_baselines_share_nothing_and_everything() -> None:
    """Local sends no key; pooled is one ordinary model."""
    net = nn.Linear(2, 1)

    assert local().share(net) == frozenset()
    assert pooled().share(net) == {"weight", "bias"}
    assert (local().scope, pooled().scope) == ("local", "pooled")
    assert parse("sitenorm+local", METHODS).scope == "local"
