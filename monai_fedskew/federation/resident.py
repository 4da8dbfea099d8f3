"""A Client at its site, under any engine: kept while the process lives, else rebuilt from the site's own store."""

import logging
from pathlib import Path

from monai_fedskew.core.messages import Broadcast, Result
from monai_fedskew.core.method import Method
from monai_fedskew.core.private import StateKey, Store, fingerprint
from monai_fedskew.errors import ConfigError, StateError
from monai_fedskew.federation.client import Client, SiteSource
from monai_fedskew.federation.exchange import Reply, Request
from monai_fedskew.federation.final import finish_site
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site_file import SiteFile
from monai_fedskew.sites.store import SiteStore

__all__ = ["Resident", "open_resident"]

logger = logging.getLogger(__name__)


class Resident:
    """Answers one site's requests, each from the private state of the round it names.

    A site that is ahead of the server (its update was lost or left out) goes back; an error drops the client, so that
    nothing half done is used again.

    Args:
        method: the same at all sites.
        source: builds the site.
        settings: the same at all sites.
        store: where private state is kept between requests.
        output: folder for the exported model and its test predictions, below which study and run get their own.
        is_kept: whether the client lives on between requests; if not, each one rebuilds it from the store.
    """

    def __init__(
        self,
        method: Method,
        source: SiteSource,
        settings: Settings,
        store: Store,
        *,
        output: Path | None = None,
        is_kept: bool = True,
    ) -> None:
        self.method, self.source, self.settings, self.store = method, source, settings, store
        self.output, self.is_kept = output, is_kept
        self._client: Client | None = None
        self._at = ("", "", -1)  # study, run and round whose private state the client has

    def answer(self, request: Request) -> Reply:
        """Do what is asked.

        Raises:
            StateError: the store has no such state, or it belongs to another network.
            ConfigError, RoundError, ...: whatever the site finds wrong; the client is rebuilt at the next request.
        """
        is_done = False
        try:
            reply = self._survey(request) if request.task == "survey" else self._serve(request)
            is_done = True
        finally:
            if not is_done or not self.is_kept:
                self.close()
        return reply

    def close(self) -> None:
        """Free the client; the next request rebuilds it."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _survey(self, request: Request) -> Reply:
        self.close()
        client = self._client = Client(self.method, self.source, self.settings)
        client.require_validation()
        try:
            drawn = self.store.read(self._key(request, client), 0)
        except StateError:  # the usual first time
            pass
        else:  # surveyed before: what was drawn then is sent again, as a second draw would spend privacy twice
            client.restore(drawn)
        survey = client.survey()
        self._store(request, client, 0)
        return Reply(survey)

    def _serve(self, request: Request) -> Reply:
        assert request.cast is not None  # by the wire: only a survey comes without a model
        client = self._of(request)
        if request.task == "finish":
            return self._finish(request, client, request.cast)
        score = client.evaluate(request.cast)
        if request.task == "evaluate":
            return Reply(score)
        update = client.fit(request.cast)
        self._store(request, client, request.cast.round)
        return Reply(update, score)

    def _finish(self, request: Request, client: Client, cast: Broadcast) -> Reply:
        if self.output is None or not isinstance(self.source, BundleSite):
            raise ConfigError(f"site {client.site.name}: nowhere to export to; give the site an output folder")
        name, private = client.site.name, client.private()
        self.close()
        folder = self.output / request.study / request.run
        for parent in (self.output, folder.parent, folder):  # its predictions name subjects: for its owner's eyes
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scores = finish_site(self.method, self.source, self.settings, cast=cast, private=private, folder=folder)
        logger.info("site %s: model of round %d and test predictions in %s", name, cast.round - 1, folder)
        return Reply(Result(name, cast.round - 1, scores))

    def _of(self, request: Request) -> Client:
        at = (request.study, request.run, request.since)
        if self._client is not None and self._at == at:
            return self._client
        self.close()
        client = self._client = Client(self.method, self.source, self.settings)
        client.restore(self.store.read(self._key(request, client), request.since))
        self._at = at
        return client

    def _store(self, request: Request, client: Client, round: int) -> None:
        keep = {request.since, *request.keep}
        self.store.write(self._key(request, client), round, client.private(), keep=keep)
        self._at = (request.study, request.run, round)

    def _key(self, request: Request, client: Client) -> StateKey:
        return StateKey(request.study, request.run, client.site.name, fingerprint(client.site.model))


def open_resident(site_file: SiteFile, method: Method, settings: Settings, *, is_kept: bool = True) -> Resident:
    """Return what answers for a hospital, from its own file.

    Args:
        site_file: where its bundle, data and private state are.
        method: the same at all sites.
        settings: the same at all sites.
        is_kept: see Resident.
    """
    store = SiteStore(site_file.state)
    source = site_file.source(settings.seed)
    return Resident(method, source, settings, store, output=site_file.output, is_kept=is_kept)
