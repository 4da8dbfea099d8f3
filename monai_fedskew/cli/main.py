"""The command ``fedskew``: loads a command's module only when it is called, so that help is instant."""

import importlib
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import click

from monai_fedskew.engines import ENGINES
from monai_fedskew.errors import ConfigError, FedSkewError

__all__ = ["fedskew", "main"]

# command: (module, what it does)
_COMMANDS = {
    "demo": ("demo", "Run a small synthetic study from data to report, in under two minutes."),
    "methods": ("methods", "List every method with its parameters and paper."),
    "privacy": ("privacy", "Say what FedRDN's noise costs in privacy and in precision."),
    "abide": ("abide", "Fetch, extract and prepare ABIDE resting-state fMRI."),
    "images": ("images", "Prepare folders of images: pictures, NIfTI volumes, DICOM series."),
    "bundle": ("bundle", "List, check and make bundles."),
    "site": ("site", "Set up a hospital for any engine; look after its private state."),
    "simulate": ("simulate", "Run one method over the sites in this process."),
    "nvflare": ("nvflare", "Run a study on NVIDIA FLARE: write jobs, simulate, submit, set up sites."),
    "compare": ("compare", "Run methods x seeds in parallel and print the table."),
    "flower": ("flower", "Run a study on Flower: write its app folder, run it."),
    "report": ("report", "Write one HTML page about a run or a comparison."),
    "diagnose": ("diagnose", "Measure curvature, Gram matrices and toy problems, as the papers do."),
}
_EXTRAS = {package: extra for package, extra in ENGINES.values() if extra}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"monai_fedskew.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="monai-fedskew", prog_name="fedskew")
@click.option("-v", "--verbose", count=True, help="Log rounds and sites (-v), or everything (-vv).")
def fedskew(verbose: int) -> None:
    """Federated learning under feature skew for MONAI bundles.

    \b
    fedskew demo                                     a first look
    fedskew abide prepare DATA --protocol fedbn --out PREPARED      connectomes
    fedskew images prepare DATA --out PREPARED                      pictures and volumes
    fedskew compare abide_connectome --study fedbn_table1 --data PREPARED --out DIR
    """
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("monai_fedskew").setLevel(level)
    logging.getLogger("ignite").setLevel(logging.CRITICAL)  # what goes wrong in an engine is told once, by us


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit 2 for a wrong call, 1 for a failure, with one line that says what to do."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)
    try:
        code = fedskew.main(args=arguments, prog_name="fedskew", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Stopped. A command that takes --resume goes on with the same call and --resume.", err=True)
        sys.exit(130)
    except FedSkewError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(str(error.name).partition(".")[0])
        if extra is None:
            raise
        click.echo(f"Error: {error.name} is not installed here; pip install 'monai-fedskew[{extra}]'", err=True)
        sys.exit(2)
    except OSError as error:  # a path that cannot be read or written; the text names it
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)
    if isinstance(code, int) and code:  # what `ctx.exit` was given
        sys.exit(code)


def _stop(signum: int, frame: FrameType | None) -> None:
    """End as by Ctrl-C, so that workers and half-written folders are cleared away."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
