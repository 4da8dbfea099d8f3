"""From a RUN folder to the models of a round at its sites, and fixed batches of each site's own training data."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from monai_fedskew.analysis.objective import Objective
from monai_fedskew.cli.diagnose_record import Record, read_record
from monai_fedskew.cli.execute import bundle_about
from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State, require_same_keys, restore
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.client import Client, SiteSource
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.reports.fields import read_fields
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle
from monai_fedskew.sites.pool import PooledSites

__all__ = [
    "Batches",
    "Counter",
    "RoundModels",
    "draw_batches",
    "enough_memory",
    "objective_of",
    "open_round",
    "receive",
]

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RoundModels:
    """A round of a finished or stopped run: what its sites would start the next round from.

    Args:
        method: what was run.
        settings: how.
        sources: name to source of the sites that train.
        round: rounds done.
        cast: the model as it would be broadcast.
        private: each site's private state.
    """

    method: Method
    settings: Settings
    sources: Mapping[str, SiteSource]
    round: int
    cast: Broadcast
    private: Mapping[str, State]

    def client(self, site: str) -> Client:
        """Open a site with its private state and the received model."""
        client = Client(self.method, self.sources[site], self.settings)
        client.restore(self.private[site])
        receive(client, self.cast)
        return client


def open_round(run: Path, *, which: Literal["last", "best"], data: Path | None = None) -> RoundModels:
    """Read a RUN folder that `fedskew simulate` or `compare` wrote.

    Args:
        run: the folder.
        which: the last committed round, or the best on validation data so far.
        data: folder of prepared sites, where they no longer lie where run.json says.

    Raises:
        ConfigError: no RUN folder, or one of an engine, whose data are not here, or of a partition; a changed bundle.
        DataError: a damaged file, or data that moved or were changed.
    """
    record = read_record(run)
    last = checkpoint.latest(run)
    if last is None:
        raise ConfigError(f"{run}: holds no round yet (rounds/ is empty); run at least one")
    held = checkpoint.load(run, last)
    method, settings = record.method, record.settings
    if which == "best":
        held = checkpoint.load(run, _best(run, settings, held))
    server = Server(method, settings)
    server.restore(held.server, round=held.round, sites=held.sites, parameters=held.parameters)
    return RoundModels(method, settings, _sources(record, data), held.round, server.cast(), held.private)


def receive(client: Client, cast: Broadcast) -> None:
    """Load a broadcast model at a site, as ``fit`` and ``evaluate`` do, without training or scoring."""
    require_same_keys(f"site {client.site.name}: broadcast of round {cast.round}", client.shared, cast.tensors)
    restore(client.site.model, cast.tensors)
    client.site.seed(client.settings.seed, cast.round)
    for bound in client.bound.values():
        bound.receive(cast)


def draw_batches(client: Client, count: int) -> Batches:
    """Return ``count`` batches of the site's own training data, all if it has fewer.

    They are those its next round would begin with, normalised as for evaluation. Vectors are joined into one batch: the
    same mean loss at a fraction of the time.
    """
    site, batches = client.site, []
    site.seed(client.settings.seed, client.settings.rounds + 1)
    engine = site.evaluator
    for batch in site.trainer.data_loader:
        inputs, targets, *extra = engine.prepare_batch(batch, engine.state.device, engine.non_blocking)
        if extra and any(extra):
            raise ConfigError(f"site {site.name}: its network takes more than an image; that cannot be diagnosed here")
        batches.append((torch.as_tensor(_plain(inputs)), torch.as_tensor(_plain(targets))))
        if len(batches) == count:
            break
    if batches[0][0].ndim == 2:
        inputs, targets = (torch.cat(values) for values in zip(*batches, strict=True))
        return [(inputs, targets)]
    return batches


def objective_of(client: Client, batches: Batches, only: tuple[str, ...]) -> Objective:
    """Return the site's task loss over ``batches``, in the parameters whose names begin with one of ``only``."""
    model, name = client.site.model, client.site.name
    trained = [key for key, value in model.named_parameters() if value.requires_grad]
    chosen = tuple(key for key in trained if key.startswith(only)) if only else ()
    if only and not chosen:
        raise ConfigError(
            f"--only {', '.join(only)}: site {name} has no such parameter; it has {', '.join(trained[:5])}"
        )
    return Objective(model, client.site.loss_function, batches, chosen)


class Counter:
    """Counts products and shows them with what is being done."""

    def __init__(self, advance: Callable[[int, str], None], done: int = 0) -> None:
        self.advance, self.done, self.note = advance, done, ""

    def __call__(self) -> None:
        """Count one more."""
        self.done += 1
        self.advance(self.done, self.note)


@contextmanager
def enough_memory(site: str) -> Iterator[None]:
    """Say what to do where second derivatives do not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        if isinstance(error, RuntimeError) and "memory" not in text:
            raise
        raise ConfigError(
            f"site {site}: second derivatives do not fit into memory; take fewer batches (--batches 1), fewer "
            "parameters (--only NAME, e.g. the last layers), or a smaller batch_size in the bundle"
        ) from error


def _plain(value: Any) -> Any:
    return value.as_tensor() if hasattr(value, "as_tensor") else value  # MONAI's tensors carry metadata


def _best(run: Path, settings: Settings, held: checkpoint.Checkpoint) -> int:
    """Return a finished run's chosen round, whose score may be newer than the last checkpoint; else the best so far."""
    path = run / "summary.json"
    if settings.choose == "best" and path.is_file():
        return read_fields(path, "resume the run, which writes it again").whole("chosen_round")
    if held.best is None:
        raise ConfigError(f"{run}: no round was scored on validation data; use --round last")
    return held.best[0]


def _sources(record: Record, data: Path | None) -> dict[str, SiteSource]:
    bundle = record.bundle if record.bundle.is_dir() else find_bundle(record.bundle_name)
    if bundle_about(bundle)["sha256"] != record.bundle_sha256:
        raise ConfigError(
            f"bundle {bundle.name}: its configuration was changed since the run; put it back or run again"
        )
    found = {}
    for name, one in record.sites.items():
        folder = one.data if data is None else data / name
        manifest = folder / "manifest.json"
        if not manifest.is_file():
            raise DataError(f"site {name}: no prepared data in {folder}; tell where they are now with --data FOLDER")
        if hashlib.sha256(manifest.read_bytes()).hexdigest() != one.manifest_sha256:
            raise DataError(f"site {name}: {folder} holds other data than the run had; give those with --data FOLDER")
        found[name] = BundleSite(bundle, name, folder.resolve(), record.overrides)
    return {"pooled": PooledSites(tuple(found.values()))} if record.method.scope == "pooled" else dict(found)
