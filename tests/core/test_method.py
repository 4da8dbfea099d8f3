import pickle
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from monai_fedskew.core import Method, Part, all_keys, compose, except_modules, no_keys, parse
from monai_fedskew.core.keys import both, except_prefix
from monai_fedskew.errors import ConfigError


@dataclass(frozen=True)
class Adds(Part):
    """A part that adds a term."""

    name: ClassVar[str] = "adds"
    stages: ClassVar[tuple[str, ...]] = ("add",)
    size: float = 1.0


@dataclass(frozen=True)
class Normalises(Part):
    """A part that normalises."""

    name: ClassVar[str] = "normalises"
    stages: ClassVar[tuple[str, ...]] = ("normalise",)


@dataclass(frozen=True)
class Also(Part):
    """Another one that normalises."""

    name: ClassVar[str] = "also"
    stages: ClassVar[tuple[str, ...]] = ("normalise",)


@dataclass(frozen=True)
class Last:
    """An aggregate of its own."""

    def init(self, current):
        """Return no memory."""
        return {}

    def step(self, memory, current, updates, weights, parameters):
        """Take the last site."""
        return memory, updates[-1].tensors


def adds(
    size: float = 1.0, kind: Literal["a", "b"] = "a", times: int = 1, is_on: bool = False, top: float | None = None
) -> Method:
    """A factory of every kind of parameter."""
    return Method("adds", parts=(Adds(size),))


def norm() -> Method:
    """A factory without parameters."""
    return Method("norm", share=except_modules(), parts=(Normalises(),))


TABLE = {"adds": adds, "norm": norm, "plain": lambda: Method("plain")}


def test_composition_joins_parts_and_intersects_filters() -> None:
    """Sorted by the parts' names, whatever the order."""
    other = Method("other", share=except_prefix("head."))

    method = compose(norm(), adds(), other)

    assert method.name == "norm+adds+other"
    assert [part.name for part in method.parts] == ["adds", "normalises"]
    assert method.share == both(except_modules(), except_prefix("head."))
    assert (method.share, method.parts) == (compose(other, adds(), norm()).share, compose(other, adds(), norm()).parts)


def test_composition_with_the_plain_method_changes_nothing() -> None:
    """It is neutral."""
    assert compose(Method("plain"), norm()).share == norm().share
    assert compose(Method("plain"), Method("plain2")).share == all_keys()


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ((adds(), Method("adds2", parts=(Adds(2.0),))), "adds is given twice; name each method once"),
        ((adds(), Method("adds:size=2")), "adds is given twice"),
        ((norm(), Method("x", parts=(Also(),))), "also and normalises both take the stage 'normalise'"),
        ((Method("p", aggregate=Last()), Method("q", aggregate=Last())), "p and q each bring their own aggregate"),
        ((Method("local", scope="local"), adds()), "local only takes a normalisation in front, not adds"),
        ((Method("local", scope="local"), norm()), "local only takes a normalisation in front, not norm"),
        ((Method("local", scope="local"), Method("p", aggregate=Last())), "local only takes a normalisation"),
        ((Method("local", scope="local"), Method("pooled", scope="pooled")), "local only takes a normalisation"),
    ],
)
def test_what_cannot_work_together_is_refused(methods, message) -> None:
    """Before anything runs, with the reason."""
    with pytest.raises(ConfigError, match=message):
        compose(*methods)


def test_one_aggregate_survives_composition() -> None:
    """A server rule composes with the rest."""
    assert compose(norm(), Method("p", aggregate=Last()), adds()).aggregate == Last()


def test_a_normalisation_goes_before_a_baseline() -> None:
    """The scope of the baseline wins, and nothing is shared."""
    local = Method("local", share=no_keys(), scope="local")

    method = compose(Method("n", parts=(Normalises(),)), local)

    assert method.scope == "local"
    assert method.share == no_keys()


def test_text_becomes_a_method() -> None:
    """Values are converted by the factory's hints; the text is the name."""
    method = parse(" norm + adds:size=0.5,kind=b,times=3,is_on=TRUE,top=2 ", TABLE)

    assert method.name == "norm+adds:size=0.5,kind=b,times=3,is_on=TRUE,top=2"
    assert method.parts == (Adds(0.5), Normalises())
    assert parse("adds:top=none", TABLE).parts == (Adds(),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown method ''; known: adds, norm, plain"),
        ("norm+", "unknown method ''"),
        ("nrom", "unknown method 'nrom'; did you mean norm"),
        ("adds:size", "adds: size='' must be a number"),
        ("adds:size=x", "adds: size='x' must be a number"),
        ("adds:times=1.5", "adds: times='1.5' must be int"),
        ("adds:kind=c", "adds: kind='c' must be one of a, b"),
        ("adds:is_on=1", "adds: is_on='1' must be true or false"),
        ("adds:top=x", "adds: top='x' must be a number"),
        ("adds:colour=red", "adds: unknown parameter 'colour'; it takes size, kind, times, is_on, top"),
        ("norm:size=1", "norm: unknown parameter 'size'; it takes no parameters"),
    ],
)
def test_wrong_text_is_refused(text, message) -> None:
    """Naming method, parameter, value and what is allowed."""
    with pytest.raises(ConfigError, match=message):
        parse(text, TABLE)


def test_methods_are_values() -> None:
    """They print, compare and pickle."""
    method = compose(norm(), adds())

    assert pickle.loads(pickle.dumps(method)) == method
    assert "norm+adds" in repr(method)


def test_a_pair_that_one_of_them_refuses_is_an_error_in_either_order() -> None:
    """The reason is in the method's own file; the core only passes it on, also through a composition."""
    picky = Method("picky", refuses={"adds": "picky measures what adds would change"})
    for methods in ((picky, adds()), (adds(), picky), (compose(picky, norm()), Method("adds:size=2"))):
        with pytest.raises(ConfigError, match=r"adds.*: picky measures what adds would change|picky.*: picky measures"):
            compose(*methods)
    assert compose(picky, norm()).refuses == picky.refuses
