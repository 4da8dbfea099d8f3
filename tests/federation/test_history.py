"""history.jsonl."""

import json
from pathlib import Path

from monai_fedskew.core.messages import Evaluation, Event
from monai_fedskew.federation.history import HistoryFile, history_rows

SCORES = [
    Evaluation(site, round, "validation", 8, {"accuracy": 0.5 + 0.1 * round, "auc": None if site == "B" else 0.75})
    for round in (0, 1)
    for site in ("A", "B")
]
EVENTS = [Event("A", 1, "trained"), Event("B", 1, "failed", "RuntimeError: scanner on fire")]


def test_a_score_is_a_row_a_metric_and_an_event_a_row() -> None:
    """Names and values of the rows."""
    first, second = history_rows(SCORES[3])
    common = {"round": 1, "site": "B", "split": "validation", "samples": 8}
    assert first == {**common, "metric": "accuracy", "value": 0.6}
    assert second == {**common, "metric": "auc", "value": None}
    assert list(history_rows(EVENTS[1])) == [
        {"round": 1, "site": "B", "event": "failed", "reason": "RuntimeError: scanner on fire"}
    ]


def test_a_missing_value_is_null_in_the_file(tmp_path: Path) -> None:
    """NaN is no JSON: every row can be read by any reader."""
    HistoryFile(tmp_path / "history.jsonl").add(*SCORES)
    text = (tmp_path / "history.jsonl").read_text()
    assert '"value": null' in text
    assert "NaN" not in text


def test_cut_goes_back_to_the_rows_of_a_checkpoint(tmp_path: Path) -> None:
    """Six rows were committed, four more written before the crash: file and memory hold six again, and go on."""
    path = tmp_path / "history.jsonl"
    history = HistoryFile(path)
    history.add(*SCORES[:2], *EVENTS)
    rows, before, text = history.rows, history.history, path.read_text()
    assert rows == 6
    history.add(*SCORES[2:])
    again = HistoryFile(path)
    again.cut(rows)
    assert again.rows == 6
    assert path.read_text() == text
    assert again.history.events == before.events
    assert again.history.scores == before.scores
    again.add(SCORES[2])
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()[-2:]] == [1, 1]
    assert again.rows == 8


def test_the_history_is_sorted_by_round_and_site() -> None:
    """Whatever order entries came in."""
    history = HistoryFile(None)
    history.add(*reversed(SCORES), *reversed(EVENTS))
    assert [(score.round, score.site) for score in history.history.scores] == [(0, "A"), (0, "B"), (1, "A"), (1, "B")]
    assert [event.site for event in history.history.events] == ["A", "B"]


def test_without_a_file_the_history_is_in_memory_only(tmp_path: Path) -> None:
    """cut and add work and write nothing."""
    history = HistoryFile(None)
    history.add(*SCORES)
    history.cut(2)
    assert history.rows == 8
    assert list(tmp_path.iterdir()) == []
