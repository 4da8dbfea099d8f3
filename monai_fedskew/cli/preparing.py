"""What the commands that prepare data share: their input folder, their progress, their tables."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

__all__ = ["FOLDER", "peak_memory_mib", "progress_of", "table"]


class _Folder(click.Path):
    """A folder that must have a name: Path("") would mean the current one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the name is empty; give a folder, or . for this one", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Folder(path_type=Path)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> Any:
    """Return a table; columns of whole numbers stand to the right."""
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD)
    for column, title in enumerate(titles):
        drawn.add_column(title, justify="right" if isinstance(rows[0][column], int) else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
    return drawn


@contextmanager
def progress_of(text: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show how much of all subjects or images is done: a bar on a terminal, plain lines elsewhere."""
    from monai_fedskew.cli.progress import bar

    with bar(text, has_lines=True) as advance:
        yield lambda done, total, name: advance(done, name, total)


def peak_memory_mib() -> float:
    """Return the most memory that this process had, in MiB."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
