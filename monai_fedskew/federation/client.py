"""The site's end of every method: knows messages, parts and weights, and no algorithm."""

import logging
from pathlib import Path
from typing import Literal, Protocol

import torch
from torch import Tensor

from monai_fedskew.core.messages import Broadcast, Evaluation, Survey, Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Deployment, Part
from monai_fedskew.core.state import State, nest, own, require_same_keys, restore, snapshot, unnest
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.running_statistics import require_finite, statistics_keys
from monai_fedskew.sites.site import Site

__all__ = ["Client", "SiteSource"]

logger = logging.getLogger(__name__)


class SiteSource(Protocol):
    """Anything that can build a Site as often as asked."""

    def open(
        self,
        parts: tuple[Part, ...] = (),
        *,
        seed: int = 0,
        split: Literal["train", "test"] = "train",
        output: Path | None = None,
    ) -> Site:
        """Build the site; see BundleSite.open."""


class Client:
    """Answers the server's messages for one site.

    Args:
        method: the same at all sites.
        source: builds the site.
        settings: the same at all sites.
        split: "test" evaluates on test data.
        output: where the bundle may write.

    Raises:
        ConfigError: the method would share nothing, or the site cannot be weighed as asked.
    """

    def __init__(
        self,
        method: Method,
        source: SiteSource,
        settings: Settings,
        *,
        split: Literal["train", "test"] = "train",
        output: Path | None = None,
    ) -> None:
        torch.set_num_threads(settings.threads)
        self.settings, self.split = settings, split
        self.site = source.open(method.parts, seed=settings.seed, split=split, output=output)
        self.shared = method.share(self.site.model)
        if not self.shared and method.scope != "local":
            raise ConfigError(f"site {self.site.name}: method {method.name} shares no entry of the network")
        if settings.weights == "groups" and not self.site.has_groups:
            raise ConfigError(
                f"site {self.site.name}: weights=groups, but the training dataset has no `groups` (one subject index a "
                "sample); give it that attribute or weigh by samples"
            )
        self.kept = frozenset(self.site.model.state_dict()) - self.shared
        parameters = {name for name, _ in self.site.model.named_parameters()}
        self._watched = (self.kept & parameters) | statistics_keys(self.site.model)
        if settings.non_finite == "error":  # what is shared goes to the server then, which stops at it
            self._watched &= self.kept
        self.bound = {part.name: part.bind(self.site) for part in method.parts}

    def require_validation(self) -> None:
        """Raise ConfigError if the model is to be chosen on validation data and the site has none."""
        if self.settings.choose == "best" and not self.site.has_evaluation_data:
            raise ConfigError(
                f"site {self.site.name}: choose=best needs validation data, but there is none; "
                "choose the last round (--choose last) or set validation_fraction above 0"
            )

    def survey(self) -> Survey:
        """Report the freshly built network and what the parts measure, once."""
        site = self.site
        parameters = frozenset(name for name, _ in site.model.named_parameters()) & self.shared
        tensors = snapshot(site.model, self.shared)
        return Survey(site.name, tensors, parameters, site.samples, site.groups, self._ask("survey"), self.kept)

    def fit(self, cast: Broadcast) -> Update:
        """Train from the broadcast model for the local epochs of its round.

        Raises:
            RoundError: no step was made, or one left NaN or infinity in running statistics or private entries, which no
                server would see.
        """
        site, keep = self.site, self.settings.optimizer_state == "keep"
        self._receive(cast)
        steps, loss = site.train(cast.round, self.settings.local_epochs, keep_optimizer=keep)
        logger.info("round %d, site %s: %d steps, mean training loss %.4f", cast.round, site.name, steps, loss)
        require_finite(f"site {site.name}: round {cast.round}", site.model, self._watched)
        aux = self._ask("end_round")
        tensors = snapshot(site.model, self.shared)
        return Update(site.name, cast.round, tensors, site.samples, site.groups, steps, aux, {"loss": loss})

    def evaluate(self, cast: Broadcast) -> Evaluation | None:
        """Score the broadcast model with the site's own private state; None if there is nothing to score on.

        The result is counted for the round that made this model, ``cast.round - 1``.
        """
        if not self.site.has_evaluation_data:
            return None
        self._receive(cast)
        samples, metrics = self.site.evaluate(cast.round - 1)
        name = "validation" if self.split == "train" else "test"
        return Evaluation(self.site.name, cast.round - 1, name, samples, metrics)

    def private(self) -> dict[str, Tensor]:
        """Return all that must survive a rebuilt client; it never leaves the site."""
        groups: dict[str, State] = {"model": snapshot(self.site.model, self.kept)}
        groups |= {f"part.{name}": state for name, state in self._ask("private").items()}
        if self.settings.optimizer_state == "keep":
            groups["optimizer"] = self.site.optimizer_state.private()
        return nest(groups)

    def restore(self, state: State) -> None:
        """Take back what ``private`` returned, possibly of another round.

        Raises:
            StateError: the state belongs to another network or method.
        """
        groups = unnest(state)
        model = groups.get("model", {})
        require_same_keys(f"site {self.site.name}: private state", self.kept, model)
        restore(self.site.model, model)
        for name, bound in self.bound.items():
            bound.restore(groups.get(f"part.{name}", {}))
        if self.settings.optimizer_state == "keep":
            self.site.optimizer_state.restore(groups.get("optimizer", {}))

    def close(self) -> None:
        """Free what the site holds; the client is of no use afterwards."""
        self.site.close()
        self.bound.clear()

    def deployments(self) -> dict[str, Deployment]:
        """Return, per part, what an exported model needs to treat its inputs the same way."""
        found = {name: bound.deploy() for name, bound in self.bound.items()}
        return {name: deployment for name, deployment in found.items() if deployment is not None}

    def _receive(self, cast: Broadcast) -> None:
        require_same_keys(f"site {self.site.name}: broadcast of round {cast.round}", self.shared, cast.tensors)
        restore(self.site.model, cast.tensors)
        self.site.seed(self.settings.seed, cast.round)
        for bound in self.bound.values():
            bound.receive(cast)

    def _ask(self, what: Literal["survey", "end_round", "private"]) -> dict[str, dict[str, Tensor]]:
        answers = {name: getattr(bound, what)() for name, bound in self.bound.items()}
        return {name: {key: own(value) for key, value in state.items()} for name, state in answers.items() if state}
