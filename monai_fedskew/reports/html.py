"""The page: one self-contained HTML file, no script and no outside resource."""

import base64
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monai_fedskew.errors import DataError
from monai_fedskew.reports import distributed, plots
from monai_fedskew.reports.about import commands, facts_of_run
from monai_fedskew.reports.brain import EdgeRanking, rank_edges
from monai_fedskew.reports.certainty import DRAWS, Difference, compare_to_first, rank_test_sentence
from monai_fedskew.reports.clients import holdings, label_strip, score_strip
from monai_fedskew.reports.confusion import confusion_figure, confusions, shown_methods
from monai_fedskew.reports.cost import COLUMNS, REFERENCE, costs, measured_at
from monai_fedskew.reports.facts import MAX_ROWS, SiteFacts, site_facts
from monai_fedskew.reports.overlays import SHOWN_SITES, dice_boxes, overlays
from monai_fedskew.reports.participation import absences, arrivals, undrawn
from monai_fedskew.reports.predictions import has_predictions, largest_class, n_classes
from monai_fedskew.reports.results import Results
from monai_fedskew.reports.site_plots import site_statistics
from monai_fedskew.reports.spread import is_crowded, overview
from monai_fedskew.reports.tables import MEAN, Table, best, is_best, summarise

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ["render_page"]


def render_page(results: Results) -> str:
    """Render all results as one HTML page.

    Args:
        results: what :func:`read_results` returned.

    Returns:
        HTML text; everything from the folder is escaped.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("monai_fedskew.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "signed": _signed,
        "effect": _effect,
        "interval": _interval,
        "data_uri": _data_uri,
        "soft": _soft,
    }
    return environment.get_template("report.html.j2").render(_context(results))


def _context(results: Results) -> dict[str, Any]:
    facts = site_facts(results)
    levels = results.levels
    main = [overview(results, level) for level in levels]
    others = [overview(results, level, metric=metric) for level in levels for metric in results.metrics[1:]]
    classes = _classes(results)
    differences = [(level, compare_to_first(results, level)) for level in levels]
    edges, why_no_edges = _edges(results, facts, main[0])  # images have none
    return {
        "results": results,
        "MEAN": MEAN,
        "is_best": is_best,
        "has_events": any(run.events for run in results.runs.values()),
        "facts_of_run": facts_of_run(results),
        "tables": [(table, best(table)) for table in main],
        "other_tables": [(table, best(table)) for table in others if _is_filled(table)],
        "empty_tables": [table for table in others if not _is_filled(table) and table.note],
        "n_classes": classes,
        "metric": results.main,
        "word": {level: results.word(level) for level in ("window", "subject")},
        "differences": differences,
        "verdicts": _verdicts(differences[-1][1]),
        "rank_test": rank_test_sentence(len(results.seeds)),
        "has_validation": any(mark.split == "validation" for run in results.runs.values() for mark in run.history),
        "curves": plots.convergence(results),
        **_crowd(results, facts, classes),
        "costs": costs(results),
        "cost_columns": COLUMNS,
        "cost_reference": REFERENCE,
        "cost_site": measured_at(results),
        "facts": facts,
        "prepared": _prepared(facts),
        "tested": _tested(results),
        "excluded": _excluded(facts),
        "site_plot": site_statistics(facts),
        **_pictures(results, facts),
        "missed": absences(results, with_undrawn=not is_crowded(results)),
        "undrawn": undrawn(results) if is_crowded(results) else "",
        "arrived": arrivals(results),
        **_of_engines(results),
        "edges": edges,
        "why_no_edges": why_no_edges,
        "commands": commands(results),
        "draws": DRAWS,
        "max_rows": MAX_ROWS,
        "max_absences": 100,
    }


def _crowd(results: Results, facts: Sequence[SiteFacts], classes: int | None) -> dict[str, Any]:
    """Sites side by side: a bar each, or dots where they are many; and what clients of a partition hold."""
    crowded = is_crowded(results)
    known = next((fact.manifest.label_names for fact in facts if fact.manifest is not None), ())
    each = crowded and not results.differ_by_seed
    return {
        "is_crowded": crowded,
        "bars": {
            level: score_strip(results, level) if crowded else plots.bars(results, level, n_classes=classes)
            for level in results.levels
        },
        "every_site": [summarise(results, level) for level in results.levels] if each else [],
        "holdings": holdings(results),
        "label_strip": label_strip(results, known),
    }


def _pictures(results: Results, facts: Sequence[SiteFacts]) -> dict[str, Any]:
    """What is taken for what, of classes; of segmentations the scores of all images, and some of them to look at."""
    methods = shown_methods(results)
    names = next((fact.manifest.label_names for fact in facts if fact.manifest is not None), ())
    counted = [(method, found) for method in methods if (found := confusions(results, method))]
    word = results.word("window")
    return {
        "confusions": [(method, confusion_figure(found, word, names)) for method, found in counted],
        "boxes": dice_boxes(results) if results.main.key == "dice" else None,
        "overlays": [(method, image) for method in methods if (image := overlays(results, method)) is not None],
        "shown_sites": SHOWN_SITES,
    }


def _of_engines(results: Results) -> dict[str, Any]:
    return {
        "engine_runs": distributed.engine_runs(results),
        "data_stay": distributed.DATA_STAY,
        "reported": distributed.reported_sites(results),
        "kept": distributed.kept_entries(results),
        "unscored": distributed.unscored(results),
    }


def _is_filled(table: Table) -> bool:
    return any(cell.mean is not None for row in table.rows for cell in row.cells)


def _classes(results: Results) -> int | None:
    """Count the classes; None where no run has predictions that tell."""
    sites = ((run, site) for run in results.runs.values() for site in results.sites)
    counts = (max(2, n_classes(run, site)) for run, site in sites if has_predictions([run], site))
    return next(counts, None)


def _verdicts(differences: Sequence[Difference]) -> list[str]:
    """Sort the methods by what the bootstrap says of them, in words."""
    groups: dict[str, list[str]] = {"higher": [], "lower": [], "not distinguishable": []}
    for difference in differences:
        if difference.subjects_interval is not None:
            low, high = difference.subjects_interval
            groups["higher" if low > 0 else "lower" if high < 0 else "not distinguishable"].append(difference.method)
    return [f"{word}: {', '.join(methods)}" for word, methods in groups.items() if methods]


def _prepared(facts: Sequence[SiteFacts]) -> list[str]:
    """Say how features were made, with the sites for which it holds where sites differ."""
    found: dict[str, list[str]] = {}
    for manifest in (fact.manifest for fact in facts if fact.manifest is not None):
        windows = f"windows of {manifest.window} volumes, {manifest.stride} apart" if manifest.window else ""
        notes = [f"{name.replace('_', ' ')}: {value}" for name, value in manifest.notes.items()]
        found.setdefault("; ".join(filter(None, (manifest.estimator, windows, *notes))), []).append(manifest.site)
    return [f"{', '.join(sites)}: {text}" if len(found) > 1 else text for text, sites in found.items() if text]


def _tested(results: Results) -> dict[str, tuple[int, int, str]]:
    """Per site: windows and subjects tested over all seeds of one method, and the share of the larger class."""
    if results.is_dealt:
        return {}
    runs = next(results.of(method) for method in results.methods if results.of(method))
    tested = {}
    for site in results.sites:
        at_site = [run.scores for run in runs if site in run.scores["window"]]
        if not at_site:
            continue
        windows = sum(scores["window"][site].samples for scores in at_site)
        subjects = sum(scores["subject"][site].samples for scores in at_site if site in scores["subject"])
        share = f"{100 * largest_class(runs, site):.1f}" if has_predictions(runs, site) else "-"
        tested[site] = (windows, subjects, share)
    return tested


def _excluded(facts: Sequence[SiteFacts]) -> list[tuple[str, str, int, str]]:
    rows = []
    for fact in facts:
        listed = fact.manifest.excluded if fact.manifest else ()
        for reason, count in sorted(Counter(one.reason for one in listed).items()):
            rows.append((fact.site, reason, count, ", ".join(one.id for one in listed if one.reason == reason)))
    return rows


def _edges(results: Results, facts: Sequence[SiteFacts], table: Table) -> tuple[EdgeRanking | None, str]:
    scored = [
        (row.cells[-1].mean, row.method) for row in table.rows if not row.source and row.cells[-1].mean is not None
    ]
    if not scored:
        return None, "no method has a score at every site"
    if results.is_image:
        return None, "images have no edges"
    method = max(scored, key=lambda pair: pair[0])[1]
    try:
        return rank_edges(results, facts, method), ""
    except DataError as error:
        return None, str(error)


def _signed(value: float | None) -> str:
    if value is None:
        return "-"
    is_tiny = value != 0 and abs(value) < 0.05  # "-0.0" would hide on which side of zero it lies
    return (f"{value:+.2f}" if is_tiny else f"{value:+.1f}").replace("-", "\u2212")


def _effect(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}".replace("-", "\u2212")


def _interval(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{_signed(pair[0])} to {_signed(pair[1])}"


def _soft(method: str) -> "Markup":
    """Let a method's text break after the signs that join its pieces."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([+:])", r"\1<wbr>", str(escape(method))))


def _data_uri(image: str | bytes) -> str:
    kind, content = ("svg+xml", image.encode()) if isinstance(image, str) else ("png", image)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
