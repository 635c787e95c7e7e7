"""What a user sees of a run, from files alone."""

import json
from pathlib import Path

import pytest

from modalities import status
from modalities.work import Progress


def test_a_rate_counts_only_what_this_process_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("modalities.work.time.time", lambda: next(clock))
    path = tmp_path / "progress.json"
    progress = Progress(path, "pretraining(150-300)")
    progress.update(1_200_000, 2_400_000, "tokens")
    progress.update(1_300_000, 2_400_000, "tokens", loss=4.5, step=160)
    said = json.loads(path.read_text())
    line = f"{status._amount(said)}{status._rate(said)}{status._extra(said)}"
    assert line == "1.3 M of 2.4 M tokens (54 %), 10.0 k/s, 1 min 50 s left, loss 4.500, step 160"


def test_progress_without_a_path_writes_nothing() -> None:
    Progress(None).update(1, 2)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (90, "1 min 30 s"), (5399, "89 min 59 s"), (7200, "2.0 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert status.duration(seconds) == text
