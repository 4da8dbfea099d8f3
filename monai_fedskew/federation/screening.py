"""What sites answered, sorted into what is of use and what is not, and why."""

import logging
import math
from collections.abc import Mapping, Sequence

from monai_fedskew.core.messages import Evaluation, Event, Result, Survey, Update
from monai_fedskew.core.metrics import is_share
from monai_fedskew.core.state import non_finite
from monai_fedskew.data.site_names import require_site_name
from monai_fedskew.errors import DataError, FedSkewError
from monai_fedskew.federation.exchange import Failure, Reply
from monai_fedskew.federation.server import Server

__all__ = ["identified", "misscored", "reasons", "usable_result", "usable_surveys", "usable_updates"]

logger = logging.getLogger(__name__)

Answers = Mapping[str, Reply | Failure]


def identified(name: str, answer: Reply | Failure) -> Reply | Failure:
    """Turn an answer in another site's name into a failure: the engine's word on who answers counts."""
    if isinstance(answer, Failure):
        return answer
    named = {message.site for message in (answer.message, answer.score) if message is not None}
    return answer if named <= {name} else Failure(f"answers as {', '.join(sorted(named - {name}))}")


def misscored(score: Evaluation, round: int) -> str:
    """Say what is wrong with the score of a received model; empty if nothing is."""
    if (score.round, score.split) != (round, "validation"):
        return f"{score.split} score of round {score.round} where the validation score of round {round} belongs"
    return ""


def usable_result(answer: Reply | Failure) -> Result | Failure:
    """Return a site's test scores, or why they cannot be reported."""
    if isinstance(answer, Failure):
        return answer
    result = answer.message
    if not isinstance(result, Result):
        return Failure("answered without test scores")
    for level, scores in result.scores.items():
        samples = scores.get("samples")
        if not isinstance(samples, int) or samples < 1:
            return Failure(f"{level} scores of {samples} samples; use one version everywhere")
        for name, value in scores.items():
            if value is None:
                continue
            if not math.isfinite(value) or (is_share(name) and not 0 <= value <= 1):
                return Failure(f"{level} {name} is {value}; use one version everywhere")
    return result


def usable_surveys(answers: Answers, round: int) -> tuple[list[Survey], list[Event]]:
    """Return the surveys of sites that can take part, and what was wrong with the others."""
    surveys, events = [], []
    for name, answer in sorted(answers.items()):
        survey = None if isinstance(answer, Failure) else answer.message
        reason = answer.reason if isinstance(answer, Failure) else "no survey in its answer"
        if isinstance(survey, Survey):
            reason = _unfit(survey)
            surveys += [] if reason else [survey]
        if reason:
            logger.warning("survey, site %s: %s; left out", name, reason)
            events.append(Event(name, round, "failed", f"survey: {reason}"))
    return surveys, events


def usable_updates(answers: Answers, round: int, server: Server) -> tuple[list[Update], list[Evaluation], list[Event]]:
    """Return the updates that fit the round, their sites' scores, and what was wrong with the others.

    Whether an update is finite is for the server to see, which may have to stop at it.
    """
    updates, scores, events = [], [], []
    for name, answer in sorted(answers.items()):
        if isinstance(answer, Failure):
            logger.warning("round %d, site %s failed: %s", round, name, answer.reason)
            events.append(Event(name, round, "failed", answer.reason))
            continue
        update = answer.message
        reason = _misfit(update, server) if isinstance(update, Update) else "no update in its answer"
        if answer.score and not reason:
            reason = misscored(answer.score, round - 1)
        if reason or not isinstance(update, Update):
            logger.warning("round %d, site %s: %s; left out", round, name, reason)
            events.append(Event(name, round, "excluded", reason))
            continue
        updates.append(update)
        scores += [answer.score] if answer.score else []
    return updates, scores, events


def reasons(events: Sequence[Event]) -> str:
    """Say what went wrong at which site, in brackets, to end an error with; empty if nothing did."""
    told = [
        f"{kind}: " + "; ".join(f"{event.site}: {event.reason}" for event in events if event.kind == kind)
        for kind in ("failed", "excluded", "missing")
        if any(event.kind == kind for event in events)
    ]
    return f" ({'; '.join(told)})" if told else ""


def _unfit(survey: Survey) -> str:
    try:
        require_site_name(survey.site, "its name at the engine")
    except DataError as error:
        return str(error)
    if survey.samples < 1 or survey.groups < 1:
        return "zero samples to train on"
    states = [survey.tensors, *survey.aux.values()]
    return next((problem for state in states if (problem := non_finite(state))), "")


def _misfit(update: Update, server: Server) -> str:
    try:
        server.check(update)
    except FedSkewError as error:
        return str(error).removeprefix(f"site {update.site}: ")
    return "zero samples" if update.samples < 1 or update.groups < 1 else ""
