"""What a server asks a site and what it hears, and what an engine must supply to carry it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from monai_fedskew.core.messages import Broadcast, Evaluation, Result, Survey, Update
from monai_fedskew.core.private import require_folder_name

__all__ = ["Failure", "Message", "Reply", "Request", "Task", "Transport"]

Task = Literal["survey", "fit", "evaluate", "finish"]
Message = Survey | Update | Evaluation | Result


@dataclass(frozen=True)
class Request:
    """What the server asks one site.

    Args:
        task: "survey" before a site's first round; "fit" scores the received model and trains it; "evaluate" scores the
            last aggregate; "finish" scores the chosen model on test data and exports it at the site.
        study: name of the study.
        run: id of this run of the study; the server makes it once and keeps it over restarts.
        since: the site's private state of this round is what it continues from; 0 is the state after its survey.
        keep: private states of these rounds must not be deleted: the best model's, and the last accepted one's.
        cast: the model; None for a survey only.

    Raises:
        ConfigError: a study or run that cannot be the name of a folder.
    """

    task: Task
    study: str
    run: str
    since: int = 0
    keep: tuple[int, ...] = ()
    cast: Broadcast | None = None

    def __post_init__(self) -> None:
        """Check the names, which become folders at the site."""
        require_folder_name("study", self.study)
        require_folder_name("run", self.run)


@dataclass(frozen=True)
class Reply:
    """A site's answer.

    Args:
        message: Survey, Update, Evaluation or Result, by task; None at a site without validation data.
        score: with an Update, the score of the received model before it was trained.
    """

    message: Message | None
    score: Evaluation | None = None


@dataclass(frozen=True)
class Failure:
    """Why a site did not answer, in one line."""

    reason: str


class Transport(Protocol):
    """What an engine supplies: who is there, and one answer a site."""

    def present(self) -> frozenset[str]:
        """Return the names of the sites that can be asked now."""

    def ask(self, requests: Mapping[str, Request]) -> Mapping[str, Reply | Failure]:
        """Ask sites, side by side if the engine can, and wait for all of them.

        Returns:
            One answer a site; what goes wrong at one site is a Failure.

        Raises:
            FedSkewError: the run cannot go on at all (it was aborted, or cannot be run as asked).
        """
