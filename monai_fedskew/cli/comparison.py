"""The runs of a study in parallel processes, and what is written about them."""

import logging
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import click

from monai_fedskew.cli.execute import RunSpec, bundle_about, execute, plan, verify_sites
from monai_fedskew.cli.options import partition_of
from monai_fedskew.cli.progress import bar
from monai_fedskew.cli.study import Study
from monai_fedskew.errors import ConfigError, FedSkewError, RoundError
from monai_fedskew.federation.history import Entry
from monai_fedskew.federation.run_folder import require_same_run, write_json
from monai_fedskew.federation.settings import Settings
from monai_fedskew.reports import render_certainty, render_cost, render_table, write_csv, write_report
from monai_fedskew.reports.results import slug

__all__ = ["run_comparison"]

_POLL_SECONDS = 0.5
_rounds: Any = None  # in a worker: counts the rounds of all workers


def run_comparison(
    bundle: Path,
    data: Path,
    study: Study,
    out: Path,
    *,
    name: str | None = None,
    jobs: int | None = None,
    resume: bool = False,
    force: bool = False,
) -> None:
    """Run every method with every seed, then write and print the table and the page.

    Args:
        bundle: the bundle's folder.
        data: folder of prepared sites.
        study: what to run.
        out: the COMPARE folder.
        name: name of the study in the bundle, None if it came from options.
        jobs: processes at once; None for the number of cores.
        resume: keep finished runs, go on with the others.
        force: replace an existing comparison.

    Raises:
        ConfigError: a wrong call, found before anything runs.
        RoundError: some runs failed; the others are finished and in the table.
    """
    specs = list(_specs(bundle, data, study, out))
    _check(specs, resume=resume)
    _prepare(out, resume=resume, force=force)
    record = {
        "schema": 1,
        "command": sys.argv,
        "study": name,
        "title": study.title,
        "reference": study.reference,
        "methods": list(study.methods),
        "seeds": list(range(study.seeds)),
        "settings": Settings(seed=0, **study.settings()).plain(),
        "bundle": bundle_about(bundle),
        "published": list(study.published) or None,
    }
    write_json(out / "compare.json", record)
    started = time.monotonic()
    failed = _run_all(specs, min(jobs or os.cpu_count() or 1, len(specs)), resume=resume)
    write_json(out / "failures.json", {f"{spec.method}|{spec.settings.seed}": why for spec, why in failed})
    reasons = [f"{spec.method}, seed {spec.settings.seed}: {why}" for spec, why in failed]
    if len(failed) == len(specs):
        raise RoundError(f"all {len(specs)} runs failed: {'; '.join(reasons)}; --resume tries them again")
    table = "\n".join(filter(None, (render_table(out), render_certainty(out), render_cost(out))))
    (out / "table.txt").write_text(table)
    write_csv(out)
    click.echo(table)
    page = write_report(out)
    click.echo(f"{len(specs)} runs in {time.monotonic() - started:.0f} s. Report: {page}")
    if failed:
        raise RoundError(f"{len(failed)} of {len(specs)} runs failed: {'; '.join(reasons)}; --resume tries them again")


def _specs(bundle: Path, data: Path, study: Study, out: Path) -> Iterator[RunSpec]:
    partition = partition_of(study.partition, study.clients)
    for method in study.methods:
        for seed in range(study.seeds):
            settings = Settings(seed=seed, **study.settings())
            folder = out / "runs" / slug(method) / f"seed{seed}"
            yield RunSpec(bundle, data, method, settings, folder, study.sites, study.overrides, partition=partition)


def _check(specs: list[RunSpec], *, resume: bool) -> None:
    """Find what would stop a run before anything is written; with ``resume`` also runs that are not the same."""
    methods = [spec.method for spec in specs if spec.settings.seed == 0]
    for method in methods:
        if methods.count(method) > 1:
            raise ConfigError(f"method {method} is given {methods.count(method)} times; name each once")
    for spec in specs:
        if spec.settings.seed == 0:
            plan(spec)
        if resume and (spec.out / "run.json").is_file():
            require_same_run(spec.out, plan(spec).about)
    verify_sites(specs[0].data, specs[0].sites)


def _prepare(out: Path, *, resume: bool, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; choose a folder")
    if out.exists() and any(out.iterdir()):
        if not resume and not force:
            raise ConfigError(f"--out {out} exists; choose another folder, --resume it or replace it with --force")
        if not (out / "compare.json").is_file():
            raise ConfigError(f"--out {out} is no comparison (no compare.json); it is left alone")
        if not resume:
            shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)


def _run_all(specs: list[RunSpec], jobs: int, *, resume: bool) -> list[tuple[RunSpec, str]]:
    """Run in ``jobs`` processes; return what failed, and why in words."""
    context = multiprocessing.get_context("spawn")
    rounds = context.Value("i", 0)
    total = sum(spec.settings.rounds for spec in specs)
    failed: list[tuple[RunSpec, str]] = []
    others = set(multiprocessing.active_children())
    with (
        bar("compare", total) as advance,
        ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(rounds,)) as pool,
    ):
        waiting: dict[Future[str], RunSpec] = {pool.submit(_run_one, spec, resume): spec for spec in specs}
        count = len(waiting)
        try:
            while waiting:
                done, _ = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    spec = waiting.pop(future)
                    problem = _problem(future)
                    failed += [(spec, problem)] if problem else []
                    what = f"[{count - len(waiting)}/{count}] {spec.method}, seed {spec.settings.seed}"
                    click.echo(f"{what}: {problem or 'done'}")
                advance(rounds.value, f"({count - len(waiting)} of {count} runs)")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()  # a checkpoint is committed by one rename: --resume goes on from the last one
            raise
    return failed


def _start_worker(rounds: Any) -> None:
    global _rounds
    _rounds = rounds
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def _run_one(spec: RunSpec, resume: bool) -> str:
    """In a worker: run one, unless it is finished; return what went wrong, in words, or nothing."""
    try:
        execute(spec, resume=resume, on_round=_on_round)
    except FedSkewError as error:
        return str(error)
    return ""


def _problem(future: "Future[str]") -> str:
    """What went wrong in a run, its own errors and any other alike: one run must not take the others with it."""
    error = future.exception()
    return f"{type(error).__name__}: {error}" if error else future.result()


def _on_round(round: int, entries: Sequence[Entry]) -> None:
    with _rounds.get_lock():
        _rounds.value += 1
