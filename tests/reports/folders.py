"""Synthetic RUN and COMPARE folders that follow the contract of the simulator, with plain Python arithmetic."""

import csv
import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from monai_fedskew.data.manifest import Excluded, Region, SiteManifest, Subject, write_manifest
from monai_fedskew.reports.results import slug

SITES = ("NORTH", "SOUTH")


@dataclass(frozen=True)
class Window:
    """One line of predictions.csv."""

    subject: str
    row: int
    label: int
    prediction: int


def write_site(
    folder: Path, site: str, *, subjects: int = 10, windows: int = 4, regions: int = 5, has_xyz: bool = True
) -> Path:
    """Write a prepared site with random edges; returns its folder."""
    place = folder / site
    place.mkdir(parents=True)
    rng = np.random.default_rng(sum(map(ord, site)))
    parcels = tuple(
        Region(str(10 + k), f"Region {k}", tuple(float(v) for v in rng.uniform(-45, 45, 3)) if has_xyz else None)
        for k in range(regions)
    )
    people = tuple(Subject(f"{k:07d}", k % 2, k * windows, (k + 1) * windows) for k in range(subjects))
    features = regions * (regions - 1) // 2
    shift = rng.normal(0, 0.1, features)
    values = (rng.normal(0.2, 0.3, (subjects * windows, features)) + shift).astype(np.float32)
    np.save(place / "vectors.npy", values)
    manifest = SiteManifest(
        site=site,
        label_names=("control", "autism"),
        kind="edges",
        regions=parcels,
        features=(),
        subjects=people,
        excluded=(Excluded("0009999", "constant ROI 4801"),),
        estimator="pearson",
        window=32,
        summary={"mean": float(values.mean()), "std": float(values.std()), "windows": len(values)},
    )
    write_manifest(place, manifest)
    return place


def windows_of(site_folder: Path, accuracy: float, seed: int, *, folds: int = 5) -> list[Window]:
    """Invent test predictions of fold `seed` in which about `accuracy` of the windows are right."""
    content = json.loads((site_folder / "manifest.json").read_text())
    rng = np.random.default_rng([seed, round(accuracy * 1e6)])
    found = []
    for k, subject in enumerate(content["subjects"]):
        if (k // 2) % folds == seed % folds:
            ease = rng.normal(0, 0.15)
            for row in range(subject["start"], subject["stop"]):
                right = rng.random() < accuracy + ease
                found.append(
                    Window(subject["id"], row, subject["label"], subject["label"] if right else 1 - subject["label"])
                )
    return found


def write_run(
    folder: Path,
    method: str,
    seed: int,
    data: dict[str, Path],
    predictions: dict[str, list[Window]],
    *,
    rounds: int = 3,
) -> Path:
    """Write a RUN folder whose scores follow from the predictions."""
    folder.mkdir(parents=True)
    features = {site: np.load(place / "vectors.npy", mmap_mode="r").shape[1] for site, place in data.items()}
    details = {
        "schema": 1,
        "command": ["fedskew", "simulate", "abide_connectome", "--method", method, "--seed", str(seed)],
        "versions": {"monai_fedskew": "0.1.0", "torch": "2.13.0", "monai": "1.6.1"},
        "method": method,
        "seed": seed,
        "settings": {
            "rounds": rounds,
            "local_epochs": 1,
            "fraction": 1.0,
            "weights": "equal",
            "choose": "last",
            "threads": 1,
        },
        "bundle": {"name": "abide_connectome", "path": "bundles/abide_connectome", "sha256": "ab" * 32},
        "overrides": {},
        "sites": {
            site: {
                "data": str(place),
                "manifest_sha256": hashlib.sha256((place / "manifest.json").read_bytes()).hexdigest(),
                "samples": 32,
                "subjects": 8,
                "summary": {"mean": 0.2, "std": 0.3},
            }
            for site, place in data.items()
        },
        "parts": [],
        "stages": {"fedrdn": ["normalise", "normalise_eval"]} if "fedrdn" in method else {},
        "started": "2026-01-01T00:00:00",
    }
    (folder / "run.json").write_text(json.dumps(details))
    for site, windows in predictions.items():
        _write_site_bundle(folder / "sites" / site, windows, features[site], seed)
    sites = {
        site: {level: _scores(windows, level) for level in ("window", "subject")}
        for site, windows in predictions.items()
    }
    summary = {
        "schema": 1,
        "method": method,
        "seed": seed,
        "split": "test",
        "chosen_round": rounds,
        "choose": "last",
        "sites": sites,
        "shared_keys": 16,
        "private_keys": 0,
        "shared_bytes": 386000,
        "seconds": {"total": 30.0, "per_round": 10.0},
        "failures": [],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    _write_history(folder / "history.jsonl", tuple(predictions), rounds, seed)
    return folder


def write_comparison(
    folder: Path, methods: dict[str, float], seeds: tuple[int, ...], *, sites: tuple[str, ...] = SITES, **more: object
) -> Path:
    """Write a COMPARE folder; `methods` gives each method's window accuracy, `more` further keys of compare.json."""
    data = {site: write_site(folder / "data", site) for site in sites}
    for method, accuracy in methods.items():
        for seed in seeds:
            predictions = {site: windows_of(place, accuracy, seed) for site, place in data.items()}
            write_run(folder / "runs" / slug(method) / f"seed{seed}", method, seed, data, predictions)
    write_plan(folder, tuple(methods), seeds, **more)
    return folder


def write_plan(folder: Path, methods: tuple[str, ...], seeds: tuple[int, ...], **more: object) -> None:
    """Write compare.json."""
    plan = {
        "schema": 1,
        "study": None,
        "title": "Synthetic comparison",
        "reference": methods[0],
        "methods": list(methods),
        "seeds": list(seeds),
        "settings": {"rounds": 3, "local_epochs": 1, "weights": "equal"},
        "bundle": {"name": "abide_connectome", "sha256": "ab" * 32},
        "published": None,
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(plan))


def _write_site_bundle(place: Path, windows: list[Window], features: int, seed: int) -> None:
    place.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    weight = rng.normal(0, 0.1, (16, features)).astype(np.float32)
    save_file({"fc1.weight": weight, "fc2.weight": np.eye(16, dtype=np.float32)}, place / "model.safetensors")
    with (place / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["subject", "row", "label", "prediction", "p0", "p1"])
        for w in windows:
            p1 = 0.7 if w.prediction == 1 else 0.3
            writer.writerow([w.subject, w.row, w.label, w.prediction, f"{1 - p1:.6f}", f"{p1:.6f}"])


def _scores(windows: list[Window], level: str) -> dict[str, object]:
    pairs = [(w.label, w.prediction) for w in windows]
    if level == "subject":
        labels = {w.subject: w.label for w in windows}
        votes = {s: Counter(w.prediction for w in windows if w.subject == s) for s in labels}
        pairs = [(labels[s], 1 if votes[s][1] > votes[s][0] else 0) for s in labels]
    recalls = []
    for label in {label for label, _ in pairs}:
        own = [p == label for y, p in pairs if y == label]
        recalls.append(sum(own) / len(own))
    accuracy = sum(y == p for y, p in pairs) / len(pairs)
    return {"accuracy": accuracy, "balanced_accuracy": sum(recalls) / len(recalls), "auc": None, "samples": len(pairs)}


def _write_history(file: Path, sites: tuple[str, ...], rounds: int, seed: int) -> None:
    lines: list[dict[str, object]] = []
    for number in range(rounds + 1):
        for site in sites:
            value = 0.5 + 0.03 * number + 0.01 * seed
            lines.append(
                {
                    "round": number,
                    "site": site,
                    "split": "validation",
                    "metric": "accuracy",
                    "value": value,
                    "samples": 8,
                }
            )
            if number:
                loss = {
                    "round": number,
                    "site": site,
                    "split": "train",
                    "metric": "loss",
                    "value": 0.7 / number,
                    "samples": 32,
                }
                lines += [loss, {"round": number, "site": site, "event": "trained", "reason": ""}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
