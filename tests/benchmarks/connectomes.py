"""Sliding-window connectomes against nilearn, and the memory of `abide prepare`.

python tests/benchmarks/connectomes.py
"""

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from ratios import Estimate, Times, conditions, in_child, options, peak_bytes, real_abide, show, take_turns

from monai_fedskew.data.abide.atlas import STRAY_LABEL, harvard_oxford
from monai_fedskew.data.abide.connectome import Edges, connectomes
from monai_fedskew.data.abide.phenotypes import find_table
from monai_fedskew.data.abide.prepare import Options, prepare
from monai_fedskew.data.abide.scans import find_scans
from monai_fedskew.data.abide.timeseries import read_series
from monai_fedskew.data.synthetic import Scanner, write_synthetic_abide

WINDOW = 32
SITES = {"NYU": 176, "USM": 236, "UM_1": 296, "UCLA_1": 116}  # volumes of a scan
PROTOCOL = Options(protocol="fedbn")


def main() -> None:
    """Measure all three."""
    asked = options(__doc__)
    if asked.child:
        return child(**json.loads(asked.child))
    conditions("connectomes.py")
    with tempfile.TemporaryDirectory() as scratch:
        data = real_abide() or synthetic_abide(Path(scratch) / "abide", quick=asked.quick)
        scans = {site: files_of(data, site) for site in SITES}
        one_series(scans["NYU"][0], most=5 if asked.quick else 61)
        whole_study(data, scans, Path(scratch), quick=asked.quick)
        memory(data, scans["NYU"], Path(scratch), quick=asked.quick)
    return None


def one_series(path: Path, *, most: int) -> None:
    """Windows 32/1 of one scan: ours, with Fisher's z, against nilearn's correlation matrices."""
    from nilearn.connectome import ConnectivityMeasure
    from sklearn.covariance import EmpiricalCovariance

    labels = [region.label for region in harvard_oxford()]
    series = read_series(path, labels, optional=(STRAY_LABEL,)).columns(labels)
    windows = [series[start : start + WINDOW] for start in range(len(series) - WINDOW + 1)]
    print(f"\nWindows {WINDOW}/1 of one {series.shape[0]} x {series.shape[1]} series")
    nilearn = "nilearn ConnectivityMeasure(kind='correlation')"
    plain = f"{nilearn}, EmpiricalCovariance"
    ours = {
        "pearson, Fisher z, 1 thread": (Edges(), 1),
        "pearson, Fisher z, 2 threads": (Edges(), 2),
        "ledoit-wolf, r, 1 thread": (Edges(estimator="ledoit-wolf", fisher_z=False), 1),
    }

    def repeated(edges: Edges, threads: int) -> int:
        for _ in range(10):  # one call is too short for the clock of a busy machine
            connectomes(series, edges, threads=threads)
        return 10

    def theirs(**estimator: object) -> None:
        ConnectivityMeasure(kind="correlation", **estimator).fit_transform(windows)

    candidates = {name: lambda k=k: repeated(*k) for name, k in ours.items()}
    candidates |= {nilearn: theirs, plain: lambda: theirs(cov_estimator=EmpiricalCovariance(store_precision=False))}
    first = next(iter(ours))
    times = take_turns(candidates, pairs=[(nilearn, first)], most=most)
    for name in candidates:
        show(name, times.of(name, scale=1e3), unit="ms")
    show(f"nilearn / ours ({first})", times.ratio(nilearn, first), least=60)
    for name in list(ours)[1:]:
        show(f"nilearn / ours ({name})", times.ratio(nilearn, name))
    show(f"nilearn with EmpiricalCovariance / ours ({first})", times.ratio(plain, first))


def whole_study(data: Path, scans: dict[str, list[Path]], scratch: Path, *, quick: bool) -> None:
    """`abide prepare` of the study against np.loadtxt and ConnectivityMeasure over a sample of its subjects."""
    total, sampled = sum(map(len, scans.values())), 1 if quick else 3
    print(f"\nabide prepare of {total} subjects; the loop: {sampled} subjects a site, scaled to all {total}")
    loop, vectors, series, writing = "loop of np.loadtxt and ConnectivityMeasure", "abide prepare", "series", "writing"
    times = Times({loop: [], vectors: [], series: [], writing: []})
    begin = time.perf_counter()
    while (turn := len(times.seconds[loop])) < (1 if quick else 9) and (turn < 3 or time.perf_counter() - begin < 240):
        picked = {site: paths[turn :: len(paths) // sampled][:sampled] for site, paths in scans.items()}
        times.seconds[loop].append(sum(len(scans[site]) * seconds_a_subject(paths) for site, paths in picked.items()))
        for name, chosen in ((vectors, PROTOCOL), (series, replace(PROTOCOL, store="series"))):
            start = time.perf_counter()
            prepare(data, scratch / "prepared", chosen)
            times.seconds[name].append(time.perf_counter() - start)
            if name == vectors:
                size = sum(path.stat().st_size for path in (scratch / "prepared").rglob("*.npy"))
            shutil.rmtree(scratch / "prepared")
        times.seconds[writing].append(seconds_to_write(scratch / "zeros", size))
    bare = f"a bare write of its {size / 1e9:.2f} GB to the same disk"
    show(loop, times.of(loop), unit="s")
    show(vectors, times.of(vectors), unit="s")
    show(f"{vectors} --store series (all edges computed, not written)", times.of(series), unit="s")
    show(bare, times.of(writing), unit="s")
    show(f"loop / {vectors}", times.ratio(loop, vectors), least=40)
    show(f"loop / {vectors} --store series", times.ratio(loop, series))
    show(f"loop / {bare}", times.ratio(loop, writing))


def seconds_to_write(path: Path, size: int) -> float:
    """What the disk takes, in pieces as large as a subject."""
    piece = bytes(145 * 5995 * 4)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(piece)):
            file.write(piece)
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def seconds_a_subject(paths: Sequence[Path]) -> float:
    """The usual script: read, correlate every window; nothing is dropped, transformed or written."""
    from nilearn.connectome import ConnectivityMeasure

    start = time.perf_counter()
    for path in paths:
        series = np.loadtxt(path)
        windows = [series[k : k + WINDOW] for k in range(len(series) - WINDOW + 1)]
        ConnectivityMeasure(kind="correlation").fit_transform(windows)
    return (time.perf_counter() - start) / len(paths)


def memory(data: Path, paths: list[Path], scratch: Path, *, quick: bool) -> None:
    """Peak memory of `abide prepare` of the first N subjects of a site, each in a process of its own."""
    print("\nPeak memory of abide prepare")
    counts = [count for count in ((4, 8) if quick else (20, 40, 80, 160)) if count <= len(paths)]
    peaks = []
    for count in counts:
        folder = scratch / f"first{count}"
        folder.mkdir()
        for path in [find_table(data), *paths[:count]]:
            (folder / path.name).symlink_to(path.resolve())
        found = in_child(__file__, data=str(folder), out=str(scratch / f"prepared{count}"))
        shutil.rmtree(scratch / f"prepared{count}")
        peaks.append(found["peak"] / 2**20)
        print(
            f"{count:>5} subjects, {found['rows']:>6} rows written ({found['bytes'] / 2**20:6.0f} MiB): peak "
            f"{peaks[-1]:6.1f} MiB, of which {found['before'] / 2**20:5.1f} before the first subject"
        )
    growth = Estimate.of([peaks[-1] / peaks[0]])
    show(f"peak with {counts[-1]} subjects / with {counts[0]}", growth, most=1.05)


def child(data: str, out: str) -> None:
    """Prepare one site and print the peak."""
    logging.disable(logging.WARNING)
    before = peak_bytes()
    site = prepare(Path(data), Path(out), Options(sites=("NYU",)))[0]
    written = (Path(out) / site.site / "vectors.npy").stat().st_size
    print(json.dumps({"peak": peak_bytes(), "before": before, "rows": site.n_rows, "bytes": written}))


def files_of(data: Path, site: str) -> list[Path]:
    """Scans of a site, sorted by name."""
    return [path for name, path in sorted(find_scans(data, is_pcp=True).items()) if name.rpartition("_")[0] == site]


def synthetic_abide(folder: Path, *, quick: bool) -> Path:
    """Write made-up scans of the real lengths, as many in all as there are real ones (a few if quick)."""
    scanners = [Scanner(site, volumes, 0.3, 0.3, 1.0) for site, volumes in SITES.items()]
    return write_synthetic_abide(folder, scanners=scanners, subjects=8 if quick else 97)


if __name__ == "__main__":
    main()
