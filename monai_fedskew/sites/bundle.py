"""A MONAI bundle folder and a site's data become a Site."""

import copy
import difflib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from monai.bundle import ComponentLocator, ConfigParser, ConfigWorkflow
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import (
    CheckpointLoader,
    CheckpointSaver,
    EarlyStopHandler,
    LrScheduleHandler,
    MLFlowHandler,
    StatsHandler,
    TensorBoardHandler,
    ValidationHandler,
)

from monai_fedskew.core.part import Part, adapt_network
from monai_fedskew.core.seeding import derive
from monai_fedskew.errors import ConfigError, FedSkewError
from monai_fedskew.sites.site import Site

__all__ = ["BundleSite", "Engines", "quiet"]

# Of use when the bundle runs alone; in a federation the rounds decide when to score, save and speak.
_LEFT_OUT = (
    ValidationHandler,
    CheckpointLoader,
    CheckpointSaver,
    StatsHandler,
    TensorBoardHandler,
    MLFlowHandler,
)
_OWNED = ("bundle_root", "site", "dataset_dir", "output_dir")
_SHOWN = 300  # characters of somebody else's error
_HANDLERS, _NETWORK = ("train#handlers", "validate#handlers"), "network_def"


@dataclass(frozen=True)
class Engines:
    """A bundle's trainer and evaluator, and what goes with them; see Site."""

    trainer: SupervisedTrainer
    evaluator: SupervisedEvaluator
    schedules: tuple[LrScheduleHandler, ...]
    survey_data: Any


@dataclass(frozen=True)
class BundleSite:
    """Where a site comes from: picklable, and opened anew as often as needed.

    Args:
        bundle: the bundle's folder.
        site: name of the site; its overlay ``configs/site_<name in lower case>.yaml`` is used when there is one.
        data: folder of the site's prepared data, None to leave the bundle's own ``dataset_dir``.
        overrides: configuration id to value, as on MONAI's command line.
        known_as: name under which the parts know the site; another than ``site`` for a model trained on a pool.
    """

    bundle: Path
    site: str
    data: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    known_as: str = ""

    def open(
        self,
        parts: Sequence[Part] = (),
        *,
        seed: int = 0,
        split: Literal["train", "test"] = "train",
        output: Path | None = None,
    ) -> Site:
        """Parse the bundle, adapt its network, build trainer and evaluator.

        Args:
            parts: their ``adapt`` runs before anything takes the network's parameters.
            seed: the seed of the run; the first weights depend on it alone, not on the site.
            split: "test" puts ``configs/evaluate.yaml`` on top, so that the evaluator reads the test data.
            output: where the bundle may write (its ``output_dir``).

        Raises:
            ConfigError: the bundle lacks a file or an id, or holds what a federation cannot use.
        """
        engines = self.engines(parts, seed=seed, split=split, output=output)
        return Site(
            self.known_as or self.site,
            engines.trainer,
            engines.evaluator,
            schedules=engines.schedules,
            survey_data=engines.survey_data,
        )

    def engines(
        self,
        parts: Sequence[Part] = (),
        *,
        seed: int = 0,
        split: Literal["train", "test"] = "train",
        output: Path | None = None,
        datasets: Mapping[str, Any] | None = None,
    ) -> Engines:
        """Build trainer and evaluator; arguments and errors as for ``open``.

        ``datasets``, id to dataset, take the place of the bundle's own before anything refers to them.
        """
        with quiet(), self._explained():
            workflow = self._workflow(split, output)
            parser: ConfigParser = workflow.parser
            parser.update(dict(datasets or {}))
            parser.parse(True)
            self._set_network(parser, parts, seed)
            self._drop_handlers(parser)
            workflow.initialize()
            trainer, evaluator = workflow.trainer, workflow.evaluator
            schedules = self._schedules(parser)
            survey = parser.get_parsed_content("survey#dataset") if "survey#dataset" in parser else None
        if evaluator is None:
            raise ConfigError(f"bundle {self.bundle.name}: `validate#evaluator` is missing; a site must be scored")
        return Engines(trainer, evaluator, schedules, survey)

    def config_files(self, split: Literal["train", "test"] = "train") -> list[Path]:
        """Return the configuration files in the order they are merged."""
        configs = self.bundle / "configs"
        files = [configs / "train.yaml", *([configs / "evaluate.yaml"] if split == "test" else [])]
        missing = [path for path in files if not path.is_file()]
        if missing:
            raise ConfigError(f"bundle {self.bundle.name}: {missing[0].resolve()} not found; a bundle needs it")
        overlay = configs / f"site_{self.site.lower()}.yaml"
        return [*files, overlay] if overlay.is_file() else files

    def ids(self) -> dict[str, Any]:
        """Return the top level of the training configuration, unparsed: id to value."""
        with self._explained():
            return _read(self.config_files())

    def _workflow(self, split: Literal["train", "test"], output: Path | None) -> ConfigWorkflow:
        files = self.config_files(split)
        if (self.bundle / "scripts").is_dir() and str(self.bundle) not in sys.path:
            sys.path.insert(0, str(self.bundle))  # MONAI does so only in `run`
        own: dict[str, Any] = {"bundle_root": str(self.bundle), "site": self.site}
        if self.data is not None:
            own["dataset_dir"] = str(self.data)
        if output is not None:
            own["output_dir"] = str(output)
        _require_plain("site", self.site)
        workflow = ConfigWorkflow(
            config_file=None,  # read below, once however often the site is opened
            meta_file=str(self.bundle / "configs" / "metadata.json"),
            logging_file=False,
            workflow_type="train",
        )
        workflow.parser.read_config(_read(files))
        workflow.parser.update(own)
        parser: ConfigParser = workflow.parser
        for key, value in self.overrides.items():
            if key.split("#")[0] in _OWNED:
                raise ConfigError(f"--set {key}: is decided by the run (--data, --out and the site); leave it out")
            if key not in parser:
                close = difflib.get_close_matches(key, parser.config, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ConfigError(f"bundle {self.bundle.name}: --set {key}: no such id in {files[0].name}{hint}")
            _require_plain(f"--set {key}", value)
        parser.update(dict(self.overrides))
        parser.locator = _locator()
        return workflow

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one line what was wrong: MONAI's parser wraps it, our own errors too, in its own words."""
        try:
            yield
        except FedSkewError:
            raise
        except Exception as error:
            cause: BaseException = error
            while not isinstance(cause, FedSkewError) and (cause.__cause__ or cause.__context__):
                cause = cause.__cause__ or cause.__context__ or cause
            if isinstance(cause, FedSkewError):
                raise cause from None
            given = ", ".join(f"{key}={value}" for key, value in self.overrides.items())
            reason = " ".join(str(cause).split())[:_SHOWN]
            raise ConfigError(
                f"bundle {self.bundle.name}, site {self.site}: cannot be opened: {type(cause).__name__}: {reason}"
                + (f" (with {given})" if given else "")
            ) from error

    def _set_network(self, parser: ConfigParser, parts: Sequence[Part], seed: int) -> None:
        if _NETWORK not in parser:
            raise ConfigError(f"bundle {self.bundle.name}: train.yaml lacks the id {_NETWORK!r}")
        torch.manual_seed(derive(seed, part="network"))
        parser[_NETWORK] = adapt_network(parser.get_parsed_content(_NETWORK), parts, seed)

    def _drop_handlers(self, parser: ConfigParser) -> None:
        """Take what only serves a run alone out of the configuration; afterwards would parse everything twice."""
        dropped = {kind.__name__ for kind in _with_subclasses(_LEFT_OUT)}
        for key in _HANDLERS:
            handlers = parser[key] if key in parser else None  # noqa: SIM401  ConfigParser.get raises on a missing parent
            if isinstance(handlers, list):
                parser[key] = [handler for handler in handlers if _class_name(handler) not in dropped]

    def _schedules(self, parser: ConfigParser) -> tuple[LrScheduleHandler, ...]:
        found = [
            (key, handler)
            for key in _HANDLERS
            for handler in (parser.get_parsed_content(key) if key in parser else None) or ()
        ]
        for key, handler in found:
            if isinstance(handler, (*_LEFT_OUT, EarlyStopHandler)):
                raise ConfigError(
                    f"bundle {self.bundle.name}: {type(handler).__name__} among {key} scores, saves, loads or stops "
                    "one site inside a round; leave it out in a federation"
                )
        return tuple(handler for _, handler in found if isinstance(handler, LrScheduleHandler))


@cache
def _locator() -> ComponentLocator:
    """One table of MONAI's classes for all sites: each parser would build its own, 11 ms a time."""
    return ComponentLocator()


def _read(files: Sequence[Path]) -> dict[str, Any]:
    """Read configuration files and merge them; the same files are parsed once, which is a third of opening a site."""
    states = ((str(path), path.stat()) for path in files)
    return copy.deepcopy(_merged(tuple((path, state.st_mtime_ns, state.st_size) for path, state in states)))


@lru_cache(maxsize=64)
def _merged(files: tuple[tuple[str, int, int], ...]) -> dict[str, Any]:
    return dict(ConfigParser.load_config_files([path for path, _, _ in files]))


def _require_plain(what: str, value: Any) -> None:
    """Refuse what MONAI's parser would evaluate or resolve: only the bundle itself may hold expressions."""
    if isinstance(value, str) and value.lstrip()[:1] in ("$", "@", "%"):
        raise ConfigError(f"{what}={value!r}: expressions are not taken here, nor references; give a plain value")
    if isinstance(value, dict):
        for key, inner in value.items():
            if str(key).startswith("_"):
                raise ConfigError(f"{what}: the key {key!r} would build an object; give plain values")
            _require_plain(what, inner)
    if isinstance(value, list | tuple):
        for inner in value:
            _require_plain(what, inner)


def _class_name(handler: Any) -> str:
    return str(handler.get("_target_")).rpartition(".")[2] if isinstance(handler, dict) else ""


def _with_subclasses(kinds: Iterable[type]) -> Iterator[type]:
    for kind in kinds:
        yield kind
        yield from _with_subclasses(kind.__subclasses__())


@contextmanager
def quiet() -> Iterator[None]:
    """Silence MONAI's notices on every parse (the `eval` notice, default files); errors still come through."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
