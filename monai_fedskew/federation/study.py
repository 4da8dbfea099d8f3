"""A study at the server of an engine: from the RUN folder through survey, rounds and test scores to summary.json."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from monai_fedskew.core.messages import Result, Survey
from monai_fedskew.core.method import Method
from monai_fedskew.core.private import require_folder_name
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.exchange import Failure, Transport
from monai_fedskew.federation.rounds import Finished, OnRound, Rounds
from monai_fedskew.federation.run_folder import is_finished, locked, open_run, require_same_run, write_json
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.summary import about_run, summarise

__all__ = ["require_federated", "run_study"]

logger = logging.getLogger(__name__)


def run_study(
    method: Method,
    settings: Settings,
    transport: Transport,
    *,
    study: str,
    run: Path,
    engine: str,
    resume: bool = False,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Run a study whose sites keep their own private state, data and configuration.

    Args:
        method: what is run; federated.
        settings: how it is run.
        transport: reaches the sites.
        study: name of the study; letters, digits and ``. _ -``.
        run: the RUN folder at the server: run.json, history.jsonl, rounds/, and at the end summary.json and
            model.safetensors, the chosen shared entries; its metadata name what stays at the sites.
        engine: name of the engine, for run.json.
        resume: go on after the last committed round of ``run``; starts anew where there is none.
        on_round: called after each round.

    Returns:
        The content of summary.json.

    Raises:
        ConfigError: a baseline that needs all data in one place, a folder that holds a run, or another run to resume.
        RoundError: too few sites; the last good round stays on disk.
    """
    require_folder_name("study", study)
    require_federated(method)
    own = {"bundle": {"name": "each site's own", "sha256": ""}, "overrides": {}, "sites": {}}
    about = {**about_run(method, settings), "engine": engine, "study": study, "command": [engine], **own}
    is_begun = run.is_dir() and checkpoint.latest(run) is not None
    if is_begun and not resume:
        raise ConfigError(
            f"study {study}: the server holds a run of it in {run}; go on with it (--resume), give the study another "
            "name, or have that folder removed at the server"
        )
    if (run / "run.json").is_file():  # also of a server that died before round 1, which left nothing to lose
        require_same_run(run, about)
        about["sites"] = json.loads((run / "run.json").read_text())["sites"]
        if is_finished(run, settings.rounds):
            summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
            if not summary.get("unfinished"):
                return summary
    open_run(run, about, resume=True, force=False)
    with locked(run):
        return _Study(method, settings, transport, about, run).run(on_round)


def require_federated(method: Method) -> None:
    """Raise ConfigError if the method is a baseline, which sends nothing or needs all data in one place."""
    if method.scope != "federated":
        raise ConfigError(f"method {method.name}: a baseline without messages; it runs in `fedskew simulate` only")


class _Study:
    def __init__(
        self, method: Method, settings: Settings, transport: Transport, about: dict[str, Any], folder: Path
    ) -> None:
        self.about, self.folder, self.started = about, folder, time.monotonic()
        self.rounds = Rounds(method, settings, transport, study=about["study"], run=folder, on_survey=self._record)

    def run(self, on_round: OnRound | None) -> dict[str, Any]:
        rounds, settings = self.rounds, self.rounds.settings
        done = checkpoint.latest(self.folder)
        if done is None:
            rounds.start()
        else:
            rounds.resume(checkpoint.load(self.folder, done))
        surveyed = time.monotonic()
        while rounds.server.round < settings.rounds:
            entries = rounds.do_round()
            logger.info("round %d of %d done", rounds.server.round, settings.rounds)
            if on_round is not None:
                on_round(rounds.server.round, entries)
        trained = time.monotonic() - surveyed
        outcome = rounds.conclude()
        results = rounds.finish(outcome)
        self._save_model(outcome)
        summary = self._summary(outcome, results)
        per_round = trained / max(1, settings.rounds - (done or 0))
        seconds = {"total": round(time.monotonic() - self.started, 2), "per_round": round(per_round, 4)}
        write_json(self.folder / "summary.json", summary | {"seconds": seconds})
        return summary | {"seconds": seconds}

    def _record(self, survey: Survey) -> None:
        """Write down who takes part, with what, and what stays there."""
        kept = sorted(survey.kept)
        self.about["sites"][survey.site] = {"samples": survey.samples, "subjects": survey.groups, "private_keys": kept}
        write_json(self.folder / "run.json", self.about)

    def _kept(self) -> list[str]:
        return sorted({key for site in self.about["sites"].values() for key in site.get("private_keys", ())})

    def _save_model(self, outcome: Finished) -> None:
        about = {
            "method": self.rounds.method.name,
            "round": str(outcome.round),
            "site_private": json.dumps(self._kept()),
        }
        partial = self.folder / "model.safetensors.partial"
        save_file(dict(outcome.cast.tensors), partial, metadata={"format": "pt", **about})
        partial.replace(self.folder / "model.safetensors")

    def _summary(self, outcome: Finished, results: Mapping[str, Result | Failure]) -> dict[str, Any]:
        scores = {name: result.scores for name, result in results.items() if isinstance(result, Result)}
        unfinished = {name: result.reason for name, result in results.items() if isinstance(result, Failure)}
        for name, reason in unfinished.items():
            logger.warning("site %s: no test scores: %s", name, reason)
        summary = summarise(
            self.rounds.method.name,
            self.rounds.settings,
            cast=outcome.cast,
            round=outcome.round,
            history=outcome.history,
            scores=scores,
            private_keys=len(self._kept()),
        )
        return {**summary, "unfinished": unfinished}
