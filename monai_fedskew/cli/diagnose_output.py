"""What `fedskew diagnose` leaves: figures, tables, all numbers, one page; and the same in short on the terminal."""

import csv
import io
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monai_fedskew.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Diagnosis", "Picture", "Sheet", "claimed", "publish"]

_RECORD = "result.json"
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title><style>{{ css }}</style></head>
<body><main>
<h1>{{ title }}</h1>
<p class="lead">{{ summary }}</p>
{% for picture in pictures %}
<figure><img src="data:image/png;base64,{{ picture.data }}" alt="{{ picture.caption }}">
<figcaption>{{ picture.caption }}</figcaption></figure>
{% endfor %}
{% for sheet in sheets %}
<div class="wide" tabindex="0"><table><caption><span>{{ sheet.caption }}</span></caption>
<thead><tr>{% for name in sheet.columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in sheet.rows %}<tr>{% for cell in row %}
<{{ 'th scope="row"' | safe if loop.first else "td" }}>{{ cell }}</{{ "th" if loop.first else "td" }}>
{% endfor %}</tr>{% endfor %}</tbody></table></div>
{% endfor %}
<h2>What does and does not follow</h2>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
<h2>Settings</h2>
<dl>{% for name, value in settings %}<dt>{{ name }}</dt><dd class="break">{{ value }}</dd>{% endfor %}</dl>
</main></body></html>
"""


@dataclass(frozen=True)
class Picture:
    """A figure, the stem of its file, and what it shows."""

    name: str
    figure: "Figure"
    caption: str


@dataclass(frozen=True)
class Sheet:
    """A table, written as NAME.csv; ``is_long`` ones (grids, curves) are not shown on page and terminal."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    is_long: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """All that a command found."""

    title: str
    summary: str
    settings: Mapping[str, Any]
    values: Mapping[str, Any]
    sheets: Sequence[Sheet]
    pictures: Sequence[Picture]
    notes: Sequence[str] = field(default=())


def claimed(out: Path, *, force: bool) -> None:
    """See, before anything long is begun, that ``out`` may be written.

    Raises:
        ConfigError: it is a file, lies in one, or is not empty and not an older result that --force may replace.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; choose a folder")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ConfigError(f"--out {out}: {above} is a file, in which no folder can be made; choose another")
    if not out.is_dir() or not any(out.iterdir()):
        return
    if not force:
        raise ConfigError(f"--out {out} exists; choose another folder or replace it with --force")
    if not _is_ours(out):
        raise ConfigError(f"--force: {out} holds no result of `fedskew diagnose`; it is left alone")


def publish(diagnosis: Diagnosis, out: Path) -> None:
    """Write everything beside ``out``, put it in place by one rename, and say in short what was found."""
    from monai_fedskew.core.whole_file import flush

    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _write(diagnosis, part)
        for path in (*part.iterdir(), part):
            flush(path)
        if out.exists():
            shutil.rmtree(out)
        part.rename(out)
    except BaseException:  # also Ctrl-C
        shutil.rmtree(part, ignore_errors=True)
        raise
    _tell(diagnosis, out)


def _write(diagnosis: Diagnosis, folder: Path) -> None:
    pictures = {picture.name: _png(picture.figure) for picture in diagnosis.pictures}
    for name, data in pictures.items():
        (folder / f"{name}.png").write_bytes(data)
    for sheet in diagnosis.sheets:
        (folder / f"{sheet.name}.csv").write_text(_csv(sheet))
    record = {
        "diagnosis": diagnosis.title,
        "settings": diagnosis.settings,
        "values": diagnosis.values,
        "notes": list(diagnosis.notes),
    }
    (folder / _RECORD).write_text(json.dumps(_plain(record), indent=1, default=str, allow_nan=False) + "\n")
    (folder / "index.html").write_text(_page(diagnosis, pictures))


def _is_ours(out: Path) -> bool:
    try:
        return "diagnosis" in json.loads((out / _RECORD).read_text())
    except (OSError, ValueError, TypeError):
        return False


def _png(figure: "Figure") -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png", bbox_inches="tight", pad_inches=0.08, dpi=130)
    return held.getvalue()


def _csv(sheet: Sheet) -> str:
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(sheet.columns)
    writer.writerows([["" if cell is None else cell for cell in row] for row in sheet.rows])
    return held.getvalue()


def _page(diagnosis: Diagnosis, pictures: Mapping[str, bytes]) -> str:
    import base64
    from importlib.resources import files

    from jinja2 import Environment

    css = (files("monai_fedskew.reports") / "templates" / "report.css").read_text()
    page = Environment(autoescape=True).from_string(_PAGE)
    return page.render(
        title=diagnosis.title,
        summary=diagnosis.summary,
        css=css,
        pictures=[
            {"data": base64.b64encode(pictures[picture.name]).decode(), "caption": picture.caption}
            for picture in diagnosis.pictures
        ],
        sheets=[
            {"caption": sheet.caption, "columns": sheet.columns, "rows": [list(map(_cell, row)) for row in sheet.rows]}
            for sheet in diagnosis.sheets
            if not sheet.is_long
        ],
        notes=diagnosis.notes,
        settings=list(diagnosis.settings.items()),
    )


def _tell(diagnosis: Diagnosis, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.width = console.width if console.is_terminal else 140
    for sheet in diagnosis.sheets:
        if sheet.is_long:
            continue
        table = Table(title=sheet.caption, title_justify="left", title_style="bold")
        for number, name in enumerate(sheet.columns):
            table.add_column(name, justify="right" if number else "left")
        for row in sheet.rows:
            table.add_row(*map(_cell, row))
        console.print(table)
    click.echo(diagnosis.summary)
    for note in diagnosis.notes:
        click.echo(f"Note: {note}")
    click.echo(f"result: {out / _RECORD}\npage:   {out / 'index.html'}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Turn tuples and numbers that JSON lacks into what it has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
