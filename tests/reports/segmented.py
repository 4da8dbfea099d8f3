"""Synthetic RUN and COMPARE folders of segmentations, whose summaries follow from their segmentation.csv."""

import csv
import json
from pathlib import Path

import numpy as np
from folders import write_plan

from monai_fedskew.reports.results import slug

SITES = ("A", "B", "C")


def write_segmented_run(
    folder: Path,
    method: str,
    seed: int,
    dice: float,
    *,
    sites: tuple[str, ...] = SITES,
    images: int = 12,
    size: int = 96,
    unit: str = "pixel",
    rounds: int = 3,
) -> Path:
    """Write a RUN folder in which a third site fares worse and the last image of each site is not found."""
    folder.mkdir(parents=True)
    scores = {}
    for number, site in enumerate(sites):
        rng = np.random.default_rng([number, seed, len(method)])
        values = np.clip(rng.normal(dice - 0.06 * number, 0.06, images), 0.05, 1)
        values[-1] = 0.0
        rows: list[list[object]] = [
            [f"{site.lower()}{k:03d}", k, "nucleus", f"{v:.6f}", f"{40 * (1 - v):.6f}" if v else "", unit]
            for k, v in enumerate(values)
        ]
        place = folder / "sites" / site
        place.mkdir(parents=True)
        with (place / "segmentation.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["subject", "row", "class", "dice", "hausdorff95", "unit"], *rows])
        _write_examples(place / "examples.npz", [str(row[0]) for row in rows[:4]], size, rng)
        distances = 40 * (1 - values[:-1])
        one = {"dice": float(values.mean()), "hausdorff95": float(distances.mean()), "samples": images}
        counts = {"dice_undefined": 0, "hausdorff95_undefined": 1}
        one |= {**counts, "hausdorff95_in_mm": images - 1 if unit == "mm" else 0}
        scores[site] = {"window": one, "subject": one}
    data = {s: {"data": "/nowhere", "samples": 40, "subjects": 40, "summary": {"images": 52.0}} for s in sites}
    details = {"schema": 1, "method": method, "seed": seed, "settings": {"rounds": rounds}, "sites": data}
    bundle = {"bundle": {"name": "nuclei_segmentation", "sha256": "cd" * 32}}
    (folder / "run.json").write_text(json.dumps({**details, **bundle}))
    summary = {"schema": 1, "method": method, "seed": seed, "chosen_round": rounds, "choose": "best", "sites": scores}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines: list[dict[str, object]] = []
    for done in range(rounds + 1):
        for site in sites:
            at = {"round": done, "site": site}
            value = dice * (1 - 0.6 ** (done + 1))
            lines.append({**at, "split": "validation", "metric": "val_dice", "value": value, "samples": 8})
            lines += [{**at, "event": "trained", "reason": ""}] if done else []
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_segmented_comparison(
    folder: Path, methods: dict[str, float], seeds: tuple[int, ...], *, sites: tuple[str, ...] = SITES
) -> Path:
    """Write a COMPARE folder; `methods` gives the mean Dice of each method at the first site."""
    for method, dice in methods.items():
        for seed in seeds:
            write_segmented_run(folder / "runs" / slug(method) / f"seed{seed}", method, seed, dice, sites=sites)
    write_plan(folder, tuple(methods), seeds, bundle={"name": "nuclei_segmentation", "sha256": "cd" * 32})
    return folder


def _write_examples(file: Path, subjects: list[str], size: int, rng: np.random.Generator) -> None:
    rows, columns = np.mgrid[:size, :size]
    planes = {}
    for k in range(len(subjects)):
        truth, predicted = np.zeros((2, size, size), np.uint8)
        for x, y, radius in zip(*rng.uniform(0.1, 0.9, (2, 6)) * size, rng.uniform(4, 12, 6), strict=True):
            truth[(rows - x) ** 2 + (columns - y) ** 2 < radius**2] = 1
            predicted[(rows - x - 2) ** 2 + (columns - y) ** 2 < (radius - 1) ** 2] = 1
        colour = np.array([230, 170, 200]) - np.array([110, 90, 50]) * truth[..., None]
        noisy = np.clip(colour + rng.normal(0, 14, (size, size, 3)), 0, 255)
        planes |= {f"image_{k}": noisy.astype(np.uint8), f"truth_{k}": truth, f"prediction_{k}": predicted}
    np.savez_compressed(file, subjects=np.array(subjects), **planes)
