"""The edges a model uses most: a ranked table, and a glass brain where coordinates are known."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.manifest import Region, SiteManifest
from monai_fedskew.errors import DataError
from monai_fedskew.reports.facts import SiteFacts
from monai_fedskew.reports.results import Results, Run

__all__ = ["TOP", "Edge", "EdgeRanking", "edge_importance", "first_layer", "glass_brain", "rank_edges"]

TOP = 40


@dataclass(frozen=True)
class Edge:
    """A ranked edge.

    ``share`` is its mean share of all importance, where 1 is an even share; ``seeds`` counts the seeds whose list
    holds it.
    """

    rank: int
    name: str
    first: str
    second: str
    share: float
    seeds: int


@dataclass(frozen=True, eq=False)
class EdgeRanking:
    """The most used edges of a method, averaged over ``models`` models (sites times seeds).

    ``image`` is a PNG of the glass brain, or None where regions lack coordinates. ``unscaled`` says why weights are not
    multiplied by the spread of the features; empty where they are.
    """

    method: str
    edges: tuple[Edge, ...]
    models: int
    seeds: int
    n_features: int
    unscaled: str
    image: bytes | None
    regions_without_xyz: int = 0

    @property
    def is_scaled(self) -> bool:
        """Whether weights are multiplied by the spread of the features."""
        return not self.unscaled


def rank_edges(results: Results, facts: Sequence[SiteFacts], method: str, *, top: int = TOP) -> EdgeRanking:
    """Rank the edges of a method over all its sites and seeds.

    Args:
        results: what :func:`read_results` returned.
        facts: of :func:`site_facts`.
        method: whose models to look at.
        top: how many edges to keep.

    Raises:
        DataError: no manifest can be read, sites differ in their features, or no model has a fitting first layer; the
            message is a sentence that can stand in the report.
    """
    if any(run.engine for run in results.of(method)):
        raise DataError("the data, and with them the names of the edges, stay at the sites")
    if results.is_dealt:
        raise DataError("clients that rows were dealt to leave no model")
    known = [fact for fact in facts if fact.manifest is not None]
    if not known:
        reasons = "; ".join(f"{fact.site}: {fact.why}" for fact in facts)
        raise DataError(f"no site's data can be read any more ({reasons})")
    manifest = known[0].manifest
    assert manifest is not None
    if any(fact.manifest is not None and fact.manifest.feature_names != manifest.feature_names for fact in known):
        raise DataError("the sites do not have the same features, so that edges cannot be averaged over them")
    runs = results.of(method)
    unscaled = _why_unscaled(runs, known)
    # one row a seed: the sites of a seed often have their first layer in common, so they are no separate witnesses
    shares = np.stack([_mean_share(run, known, is_scaled=not unscaled) for run in runs])
    mean = shares.mean(axis=0)
    leading = np.argsort(-mean, kind="stable")[:top]
    in_top = np.zeros(shares.shape[1], int)
    for row in shares:
        in_top[np.argsort(-row, kind="stable")[:top]] += 1
    edges = tuple(_edge(manifest, rank, int(k), float(mean[k]), int(in_top[k])) for rank, k in enumerate(leading, 1))
    image = None
    lacking = sum(region.xyz is None for region in manifest.regions)
    if manifest.kind == "edges" and manifest.regions and not lacking:
        image = glass_brain(manifest.regions, leading, mean[leading])
    counts = (len(runs) * len(known), len(runs), manifest.n_features)
    return EdgeRanking(method, edges, *counts, unscaled, image, lacking)


def edge_importance(
    weight: npt.NDArray[np.floating], std: npt.NDArray[np.floating] | None = None
) -> npt.NDArray[np.float64]:
    """Measure how much a first layer makes of each input.

    The L2 norm over hidden units of the input's weights, times the input's standard deviation.

    Args:
        weight: first layer, shape (hidden units, features).
        std: standard deviation of each feature at the site, shape (features,); None leaves it out.

    Returns:
        Importance of each feature, shape (features,), not negative.

    Example:
        >>> edge_importance(np.array([[3.0, 0.0], [4.0, 1.0]]), np.array([1.0, 2.0])).tolist()
        [5.0, 2.0]
    """
    norm: npt.NDArray[np.float64] = np.linalg.norm(weight.astype(np.float64), axis=0)
    return norm if std is None else norm * std


def first_layer(file: Path, n_features: int) -> npt.NDArray[np.floating]:
    """Read the first 2-D weight of a model whose input has ``n_features`` entries.

    Args:
        file: a ``model.safetensors``.
        n_features: features of the site's rows.

    Returns:
        The weight, shape (hidden units, n_features).

    Raises:
        DataError: the file is absent, or no weight fits.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            for key in tensors.keys():  # noqa: SIM118  # an opened file is no mapping
                shape = tensors.get_slice(key).get_shape()
                if len(shape) == 2 and shape[1] == n_features:
                    found: npt.NDArray[np.floating] = tensors.get_tensor(key)
                    return found
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from error
    raise DataError(f"{file}: has no 2-D weight with {n_features} inputs, so edges cannot be ranked")


def glass_brain(regions: Sequence[Region], edges: npt.NDArray[np.integer], values: npt.NDArray[np.floating]) -> bytes:
    """Draw edges on nilearn's glass brain.

    Args:
        regions: all regions, each with coordinates in MNI millimetres.
        edges: numbers of the edges to draw (upper triangle, row-major).
        values: one value an edge, not negative; sets colour and width.

    Returns:
        A PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from nilearn import plotting

    from monai_fedskew.reports.plots import png

    rows, columns = (index[edges] for index in np.triu_indices(len(regions), 1))
    used = sorted({*rows.tolist(), *columns.tolist()})
    place = {region: k for k, region in enumerate(used)}
    matrix = np.zeros((len(used), len(used)))
    for i, j, value in zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True):
        matrix[place[i], place[j]] = matrix[place[j], place[i]] = value
    figure = Figure(figsize=(10, 3.6))
    FigureCanvasAgg(figure)
    plotting.plot_connectome(
        matrix,
        [regions[k].xyz for k in used],
        figure=figure,
        node_color="#333333",
        node_size=14,
        edge_cmap="viridis_r",
        edge_vmin=math.floor(10 * values.min()) / 10,  # the colour bar ends at round numbers and cuts what is beyond
        edge_vmax=math.ceil(10 * values.max()) / 10,
        colorbar=True,
        edge_kwargs={"linewidth": 1.8},
    )
    scale = figure.axes[-1].yaxis  # nilearn leaves a tick out
    scale.set_major_locator(MaxNLocator(6))
    scale.set_major_formatter("{x:g}")
    return png(figure)


def _mean_share(run: Run, facts: Sequence[SiteFacts], *, is_scaled: bool) -> npt.NDArray[np.float64]:
    """Give every edge's share of a model's importance, where 1 is an even share; mean over the sites of a run."""
    shares = []
    for fact in facts:
        assert fact.manifest is not None
        weight = first_layer(run.folder / "sites" / fact.site / "model.safetensors", fact.manifest.n_features)
        importance = edge_importance(weight, fact.std if is_scaled else None)
        shares.append(importance / max(float(importance.mean()), np.finfo(float).tiny))
    mean: npt.NDArray[np.float64] = np.mean(shares, axis=0)
    return mean


def _why_unscaled(runs: Sequence[Run], facts: Sequence[SiteFacts]) -> str:
    if any(fact.std is None for fact in facts):
        return "the rows themselves are not stored"
    stages = [run.details.get("stages") for run in runs]
    if any(not isinstance(one, Mapping) for one in stages):
        return "run.json does not say whether the method normalises the features"
    if any("normalise" in acts for one in stages if isinstance(one, Mapping) for acts in one.values()):
        return "the method normalises the features before the network sees them"
    return ""


def _edge(manifest: SiteManifest, rank: int, number: int, share: float, seeds: int) -> Edge:
    name = manifest.feature_names[number]
    if manifest.kind != "edges":
        return Edge(rank, name, name, "", share, seeds)
    rows, columns = np.triu_indices(len(manifest.regions), 1)
    ends = [manifest.regions[int(index[number])] for index in (rows, columns)]
    first, second = (f"{end.label} {end.name}".strip() for end in ends)
    return Edge(rank, name, first, second, share, seeds)
