"""``fedskew flower``: the app folder of a study, and a run of it that is known to have worked or not."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from monai_fedskew.cli import options
from monai_fedskew.errors import ConfigError, RoundError

__all__ = ["flower"]

_SECONDS = click.IntRange(1)


@click.group()
def flower() -> None:
    """Run a study on Flower: SuperLink, SuperNodes and an app folder without code.

    The README of the app folder has every command, for the server and for a hospital.
    """


@flower.command()
@click.option("--study", required=True, help="Name of the study, of its RUN folder and of the state sites keep for it.")
@options.method
@click.option("--sites", type=click.IntRange(1), required=True, help="Sites to wait for before the first round.")
@options.seed
@options.settings_options
@click.option("--timeout", type=_SECONDS, default=3600, show_default=True, help="Seconds a site has for an answer.")
@click.option("--wait", type=_SECONDS, default=600, show_default=True, help="Seconds to wait for --sites.")
@click.option("--resume", is_flag=True, help="Every run of this app goes on where the study's RUN folder stopped.")
@options.force
@options.out
def app(force: bool, out: Path, **given: Any) -> None:
    """Write the app folder --out: a configuration, a README with every command, and two import lines."""
    from monai_fedskew.cli.flower_app import write_app
    from monai_fedskew.core.private import require_folder_name
    from monai_fedskew.federation.study import require_federated
    from monai_fedskew.methods import parse_method

    ours = {name: given.pop(name) for name in ("study", "method", "sites", "timeout", "wait", "resume")}
    require_folder_name("--study", ours["study"])
    require_federated(parse_method(ours["method"]))
    settings = options.settings_of(given)
    write_app(out, ours | settings.plain(), force=force)
    click.echo(f"app: {out}\nHow to run it, for server and hospitals: {out / 'README.md'}")


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="APP")
@click.argument("superlink", required=False)
@click.option("--resume", is_flag=True, help="Go on where the study's RUN folder stopped.")
def run(folder: Path, superlink: str | None, resume: bool) -> None:
    """Run the app folder APP on the connection SUPERLINK of Flower's config.toml, and wait for its end.

    `flwr run` exits 0 whatever becomes of the run; this exits 1 with Flower's reason unless it was completed.
    """
    where, changed = ([superlink] if superlink else []), (["--run-config", "resume=true"] if resume else [])
    number = str(_flwr("run", str(folder), *where, *changed)["run-id"])
    click.echo(f"run {number}; Ctrl-C leaves it running, `flwr stop {number}` ends it")
    subprocess.run([_program(), "log", number, *where, "--stream"], check=False)
    again = " ".join(["fedskew flower run", str(folder), *where, "--resume"])
    (held,) = _flwr("list", *where, "--run-id", number)["runs"]
    if held["status"] != "finished:completed":
        raise RoundError(
            f"run {number} is {held['status']}: {held['status-details']}. Committed rounds are kept; once the cause is "
            f"removed, `{again}` goes on"
        )
    click.echo(f"run {number} completed; its RUN folder is at the server")


def _flwr(*arguments: str) -> dict[str, Any]:
    """Call Flower's command line and return the JSON it prints."""
    done = subprocess.run([_program(), *arguments, "--format", "json"], capture_output=True, text=True, check=False)
    try:
        told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        told = {"error-message": (done.stdout + done.stderr).strip()}
    if not told.get("success"):
        raise RoundError(f"flwr {arguments[0]}: {told.get('error-message') or told}")
    return told


def _program() -> str:
    """Flower's command, that of this environment if there is one."""
    beside = Path(sys.executable).with_name("flwr")
    found = str(beside) if beside.is_file() else shutil.which("flwr")
    if found is None:
        raise ConfigError("flwr is not installed here; pip install 'monai-fedskew[flower]'")
    return found
