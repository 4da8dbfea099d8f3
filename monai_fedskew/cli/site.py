"""`fedskew site`: a hospital's own file, its checks, and the private state it keeps."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from monai_fedskew.cli import options

if TYPE_CHECKING:
    from monai_fedskew.sites.state_folder import Held

__all__ = ["site"]

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_SITE_FILE = "fedskew.json"


@click.group()
def site() -> None:
    """Set up a hospital for any engine, and look after the private state that stays there."""


@site.command()
@click.option("--bundle", required=True, help="Name of a shipped bundle, or a folder.")
@click.option("--data", required=True, type=_PATH, help="The site's prepared folder, or the folder of several sites.")
@click.option("--site", "name", required=True, help="The site's name, as the engine knows it.")
@options.prepared_as
@click.option("--state", type=_PATH, help="Folder of its private state. [`state` beside the file]")
@click.option("--output", type=_PATH, help="Folder of its results. [`results` beside the file]")
@options.overrides
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--out", type=_PATH, default=Path(_SITE_FILE), show_default=True, help="The file to write.")
def init(
    bundle: str,
    data: Path,
    name: str,
    prepared_as: str | None,
    state: Path | None,
    output: Path | None,
    overrides: tuple[str, ...],
    force: bool,
    out: Path,
) -> None:
    """Write the file that tells an engine where this hospital's bundle, data and private state lie."""
    from monai_fedskew.cli.study import parse_overrides
    from monai_fedskew.data.site_names import require_site_name
    from monai_fedskew.errors import ConfigError, DataError
    from monai_fedskew.sites.locate import find_bundle
    from monai_fedskew.sites.site_file import SiteFile, write_site_file

    require_site_name(name, "--site")
    if out.exists() and not force:
        raise ConfigError(f"--out {out} exists; choose another file, or --force to replace it")
    folder = data / name if not (data / "manifest.json").is_file() and (data / name).is_dir() else data
    if not folder.is_dir():
        raise DataError(f"--data {data}: no such folder; name the folder of the site's prepared data")
    beside = out.absolute().parent
    content = SiteFile(
        site=name,
        bundle=find_bundle(bundle),
        data=folder.absolute(),
        state=(state or beside / "state").absolute(),
        output=(output or beside / "results").absolute(),
        overrides=parse_overrides(overrides),
        prepared_as=prepared_as or "",
    )
    write_site_file(out, content)
    click.echo(f"site file: {out.absolute()}\nnext:      fedskew site check {out} --method METHOD")


@site.command()
@click.argument("file", type=_PATH, default=Path(_SITE_FILE))
@click.option("--site", "name", help="The site's name at the engine, where the file does not say it.")
@click.option("--method", default="fedavg", show_default=True, help="The study's method; see `fedskew methods`.")
@click.option("--seed", type=int, default=0, show_default=True, help="The study's seed; also picks the subject fold.")
def check(file: Path, name: str | None, method: str, seed: int) -> None:
    """Open bundle and data as a study would, and say line by line what is fine. Writes nothing.

    Exit code 1 if something must be mended.
    """
    from monai_fedskew.cli.site_checks import check_site
    from monai_fedskew.federation.settings import Settings
    from monai_fedskew.sites.site_file import read_site_file

    content = read_site_file(file, name)
    click.echo(f"ok       site file: {file.absolute()}")
    problems = 0
    for is_good, text in check_site(content, method, Settings(rounds=1, seed=seed)):
        problems += not is_good
        click.echo(f"{'ok' if is_good else 'PROBLEM':<8} {text}")
    click.echo("ready" if not problems else f"{problems} to mend")
    if problems:
        raise click.exceptions.Exit(1)


@site.group()
def state() -> None:
    """List, show and drop the private state that a site keeps between rounds."""


def _where(command: F) -> F:
    """Add the options that say where state lies."""
    command = click.option("--state", "folder", type=_PATH, help="The folder of state itself, instead of --file.")(
        command
    )
    return click.option("--file", type=_PATH, default=Path(_SITE_FILE), show_default=True, help="The site's file.")(
        command
    )


def _which(command: F) -> F:
    """Add what picks private states: a study, and options that narrow it down."""
    command = click.option("--site", "name", help="Only this site.")(_where(command))
    return click.argument("study")(click.option("--run", help="Only this run of the study.")(command))


@state.command("list")
@_where
def list_(file: Path, folder: Path | None) -> None:
    """List what is kept: study, site, run, network, rounds, size, and when it was last written."""
    from monai_fedskew.sites.state_folder import list_held

    root = _root(file, folder)
    found = list_held(root) if root.is_dir() else []
    click.echo(_table(found) if found else f"nothing in {root} yet")


@state.command()
@_which
def show(study: str, run: str | None, name: str | None, file: Path, folder: Path | None) -> None:
    """Show the entries of a STUDY's private state with their types and shapes; never a value."""
    from monai_fedskew.sites.store import read_about

    for held in _found(_root(file, folder), study, run, name):
        about = read_about(held.folder)
        versions = ", ".join(f"{package} {number}" for package, number in about["versions"].items())
        click.echo(f"study {held.study}, site {held.site}, run {held.run}\n  folder:  {held.folder}")
        click.echo(f"  network: {about['network']}\n  written: {_when(held)} by {versions}")
        click.echo(f"  rounds:  {_rounds(held)} ({_size(held.size)})\n  entries: {len(about['entries'])}")
        width = max((len(entry) for entry in about["entries"]), default=0)
        for entry, kind in about["entries"].items():
            click.echo(f"    {entry:<{width}}  {kind}")


@state.command()
@_which
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(study: str, run: str | None, name: str | None, file: Path, folder: Path | None, yes: bool) -> None:
    """Delete a STUDY's private state at this site for good. Refused while a process holds it."""
    from monai_fedskew.sites import state_folder

    root = _root(file, folder)
    found = _found(root, study, run, name)
    for held in found:
        state_folder.require_free(held)
    click.echo(_table(found))
    click.echo(
        "These rounds cannot be made again: a run that goes on would have to start from its first round at this site, "
        "and the site's own norm statistics, optimizer and other private entries are lost."
    )
    if not yes and not click.confirm("Delete them?"):
        click.echo("nothing was deleted")
        raise click.exceptions.Exit(1)
    for held in found:
        state_folder.drop(root, held)
    click.echo(f"dropped {len(found)}")


def _root(file: Path, folder: Path | None) -> Path:
    from monai_fedskew.sites.site_file import read_site_file

    return read_site_file(file).state if folder is None else folder


def _found(root: Path, study: str, run: str | None, name: str | None) -> "list[Held]":
    from monai_fedskew.errors import ConfigError
    from monai_fedskew.sites.state_folder import list_held

    everything = list_held(root)
    found = [h for h in everything if h.study == study and run in (None, h.run) and name in (None, h.site)]
    if not found:
        asked = f"study {study}" + (f", run {run}" if run else "") + (f", site {name}" if name else "")
        there = ", ".join(f"{h.study} (run {h.run}, site {h.site})" for h in everything)
        raise ConfigError(f"{root}: no private state of {asked}; there is {there or 'none'}")
    return found


def _table(found: "list[Held]") -> str:
    rows = [("STUDY", "SITE", "RUN", "NETWORK", "ROUNDS", "SIZE", "LAST WRITTEN")]
    rows += [(h.study, h.site, h.run, h.network, _rounds(h), _size(h.size), _when(h)) for h in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _rounds(held: "Held") -> str:
    return ", ".join(map(str, held.rounds)) or "none"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.1f} KiB"


def _when(held: "Held") -> str:
    return held.written.astimezone().strftime("%Y-%m-%d %H:%M:%S") if held.written else "never"
