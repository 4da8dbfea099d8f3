"""history.jsonl: one row per round, site, split and metric, and one per round, site and event."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monai_fedskew.core.messages import Evaluation, Event, History
from monai_fedskew.core.whole_file import write_whole
from monai_fedskew.errors import DataError

__all__ = ["Entry", "HistoryFile", "history_rows"]

Entry = Evaluation | Event


class HistoryFile:
    """Appends entries to a file as they come, and cuts it back when a run resumes from an earlier round.

    Args:
        path: the file; None keeps the history in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows = 0
        self._entries: list[Entry] = []

    @property
    def history(self) -> History:
        """All entries so far."""
        return History.of(self._entries)

    def start(self) -> None:
        """Begin an empty file, also over rows of a run that died before its first checkpoint.

        Raises:
            DataError: it tells of rounds whose checkpoints must have been there.
        """
        if self.path is not None:
            if (told := _last_round(self.path)) > 1:
                raise DataError(
                    f"{self.path}: tells of {told} rounds, but there is no checkpoint beside it; put the folder rounds "
                    "back, or start anew in another folder"
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("")

    def add(self, *entries: Entry) -> None:
        """Append entries."""
        self._entries += entries
        lines = [json.dumps(row) + "\n" for entry in entries for row in history_rows(entry)]
        self.rows += len(lines)
        if self.path is not None:
            with self.path.open("a") as file:
                file.writelines(lines)

    def cut(self, rows: int) -> None:
        """Keep the first ``rows`` rows of what the file holds, as after the round that is resumed from."""
        if self.path is None:
            return
        try:
            lines = self.path.read_text().splitlines(keepends=True)[:rows]
            entries = list(_entries([json.loads(line) for line in lines]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{self.path}: cannot be read ({error}); start anew in another folder") from error
        if len(lines) < rows:
            raise DataError(f"{self.path}: has {len(lines)} rows where its checkpoint counts {rows}; start anew")
        write_whole(self.path, "".join(lines))
        self.rows = len(lines)
        self._entries = entries


def history_rows(entry: Entry) -> Iterator[dict[str, Any]]:
    """Yield the rows of one entry as plain values."""
    if isinstance(entry, Event):
        yield {"round": entry.round, "site": entry.site, "event": entry.kind, "reason": entry.reason}
        return
    for metric, value in entry.metrics.items():
        common = {"round": entry.round, "site": entry.site, "split": entry.split}
        yield {**common, "metric": metric, "value": value, "samples": entry.samples}


def _last_round(path: Path) -> int:
    try:
        return max((int(json.loads(line)["round"]) for line in path.read_text().splitlines()), default=0)
    except (OSError, ValueError, KeyError, TypeError):  # absent, or nothing that could be gone on from
        return 0


def _entries(rows: list[dict[str, Any]]) -> Iterator[Entry]:
    scores: dict[tuple[int, str, str], dict[str, float | None]] = {}
    samples: dict[tuple[int, str, str], int] = {}
    for row in rows:
        if "event" in row:
            yield Event(row["site"], row["round"], row["event"], row["reason"])
            continue
        key = (row["round"], row["site"], row["split"])
        scores.setdefault(key, {})[row["metric"]] = row["value"]
        samples[key] = row["samples"]
    for (round, site, split), metrics in scores.items():
        yield Evaluation(site, round, split, samples[round, site, split], metrics)
