"""``fedskew nvflare``: run a study on NVIDIA FLARE, in its simulator or in a running federation."""

from pathlib import Path
from typing import Any

import click

from monai_fedskew.cli import options

__all__ = ["nvflare"]

_FOLDER = click.Path(path_type=Path)
_task_timeout = click.option(
    "--task-timeout",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="SECONDS",
    help="Go on without a site that takes longer for a task; 0 waits for ever.",
)


@click.group()
def nvflare() -> None:
    """Run a study on NVIDIA FLARE (`pip install monai-fedskew[nvflare]`).

    \b
    at the server   site-setup SERVER_KIT --runs DIR --apply
    at a hospital   site-setup KIT --bundle B --data DIR --apply; preflight KIT --job JOB
    the researcher  job --study NAME --method M --rounds N --out JOB; submit JOB --startup-kit ADMIN_KIT
    """


@nvflare.command()
@click.option("--study", required=True, help="Name of the study; a job of the same name goes on with it.")
@options.method
@options.seed
@options.settings_options
@_task_timeout
@click.option("--resume", is_flag=True, help="Go on after the last committed round of this study.")
@options.force
@options.out
def job(study: str, method: str, task_timeout: int, resume: bool, force: bool, out: Path, **given: Any) -> None:
    """Write the job folder --out: two configurations and no code.

    FLARE starts the job when --min-sites are connected, with all that are. What only a hospital may say (data, bundle,
    overrides) is in its own local/fedskew.json and never in a job.
    """
    from monai_fedskew.cli.nvflare_job import write_job

    write_job(study, method, options.settings_of(given), task_timeout=task_timeout, resume=resume, out=out, force=force)
    click.echo(f"job: {out}\nAt each hospital: fedskew nvflare preflight KIT --job {out}")


@nvflare.command()
@click.argument("bundle")
@options.data
@options.method
@click.option("--site", "sites", multiple=True, help="Only these sites. Repeatable. [all prepared ones]")
@options.seed
@options.run_options
@_task_timeout
@options.force
@options.out
def simulate(
    bundle: str,
    data: Path,
    method: str,
    sites: tuple[str, ...],
    overrides: tuple[str, ...],
    task_timeout: int,
    force: bool,
    out: Path,
    **given: Any,
) -> None:
    """Run one METHOD in FLARE's simulator, a process a site; writes the RUN folder --out.

    The study is named after the folder. FLARE's own workspace and logs are kept in OUT/flare.
    """
    from monai_fedskew.cli.execute import RunSpec, plan, verify_sites
    from monai_fedskew.cli.nvflare_simulate import run_simulator
    from monai_fedskew.cli.study import parse_overrides
    from monai_fedskew.reports import render_table
    from monai_fedskew.sites.locate import find_bundle

    settings = options.settings_of(given)
    planned = plan(RunSpec(find_bundle(bundle), data, method, settings, out, sites, parse_overrides(overrides)))
    verify_sites(data, sites)
    run_simulator(method, settings, planned.sites, out=out.absolute(), task_timeout=task_timeout, force=force)
    click.echo(render_table(out))
    click.echo(f"run: {out}\nFor the page: fedskew report {out}")


@nvflare.command()
@click.argument("job", type=_FOLDER, metavar="JOB")
@click.option("--startup-kit", required=True, type=_FOLDER, metavar="DIR", help="An admin's startup kit.")
@click.option("--resume", is_flag=True, help="Go on after the last committed round of the study.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Show rounds until the job ends.")
@click.option("--out", type=_FOLDER, metavar="DIR", help="Where the result is put; must not exist.")
def submit(job: Path, startup_kit: Path, resume: bool, wait: bool, out: Path | None) -> None:
    """Send JOB to a running federation.

    Exit code 1 if the study is not complete when the job ends, with the reason. A study that stopped, for whatever
    reason, goes on with the same JOB and --resume: every site continues from its own private state, bit for bit.
    """
    from monai_fedskew.cli.nvflare_job import read_job
    from monai_fedskew.cli.nvflare_submit import session, submit_job, wait_for
    from monai_fedskew.errors import ConfigError

    if out is not None and out.exists():
        raise ConfigError(f"--out {out} exists; choose another folder")
    read_job(job)
    with session(startup_kit.absolute()) as opened:
        number = submit_job(opened, job, resume=resume)
        click.echo(f"job {number} is sent")
        if wait:
            try:
                wait_for(opened, number, out=out)
            except KeyboardInterrupt:
                click.echo(f"job {number} goes on at the server; an admin can abort it there", err=True)
                raise


@nvflare.command("site-setup")
@click.argument("kit", type=_FOLDER)
@click.option("--bundle", help="This hospital's bundle: a name from `fedskew bundle list` or a folder.")
@click.option("--data", type=_FOLDER, help="Its prepared data, the folder of this one site.")
@click.option("--state", type=_FOLDER, help="Where its private state is kept. [KIT/local/state]")
@options.prepared_as
@click.option("--runs", type=_FOLDER, help="At the server: where the runs of all studies are kept.")
@click.option("--apply", "is_applied", is_flag=True, help="Write it; a changed resources.json is kept beside it.")
def site_setup(kit: Path, is_applied: bool, **given: str | Path | None) -> None:
    """Say what KIT (a hospital's or the server's startup kit) lacks for our jobs, or mend it.

    Adds one class to class_allow_list of local/resources.json, which allows jobs that hold no code, and writes
    local/fedskew.json. FLARE reads both at each job: nothing has to be restarted. Called twice, it changes nothing.
    """
    from monai_fedskew.cli.nvflare_kit import Kit, allow_list_text, setup

    found = Kit.of(kit)
    steps = setup(found, {key: value for key, value in given.items() if value is not None}, is_applied=is_applied)
    click.echo(f"{found.role} {found.name}: {found.path}")
    click.echo(allow_list_text(found))
    for step in steps:
        click.echo(step)
    if not is_applied:
        click.echo("Nothing was written; --apply does.")


@nvflare.command()
@click.argument("kit", type=_FOLDER)
@click.option("--job", "job_folder", required=True, type=_FOLDER, metavar="JOB", help="The job folder.")
def preflight(kit: Path, job_folder: Path) -> None:
    """Say whether KIT (a hospital's or the server's) would refuse a job, and why; exit code 1 if it would."""
    from monai_fedskew.cli.nvflare_preflight import checks

    is_refused = False
    for is_good, text in checks(kit, job_folder):
        click.echo(f"{'ok' if is_good else 'NO':3}{text}")
        is_refused |= not is_good
    click.echo("the job would be refused or fail here" if is_refused else "the job would run here")
    if is_refused:
        raise click.exceptions.Exit(1)
