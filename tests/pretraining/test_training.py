"""The equality contract for one rank: what must be the same to the bit, and what to rounding."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from modalities.checkpoint import digests, newest
from modalities.errors import InterruptedRunError
from modalities.pretraining.config import NumericsConfig, RuntimeConfig


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "state" / "metrics.jsonl").read_text().splitlines()]


def trace(folder: Path) -> list[tuple[Any, ...]]:
    return [(x["step"], x["loss"], x["grad_norm"], x["learning_rate"], x["tokens"]) for x in lines(folder)]


def test_same_run_twice_is_bit_identical(tmp_path, section, run_segment) -> None:
    first, second = run_segment("a", section), run_segment("b", section)
    assert trace(tmp_path / "a") == trace(tmp_path / "b")
    assert digests(tmp_path / "a" / "checkpoint") == digests(tmp_path / "b" / "checkpoint")
    assert first["info"]["final_loss"] == second["info"]["final_loss"]
    losses = [x["loss"] for x in lines(tmp_path / "a")]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_resume_is_bit_identical(tmp_path, section, run_segment, monkeypatch, asynchronous) -> None:
    run_segment("whole", section)
    runtime = dataclasses.replace(section.runtime, checkpoint_every_steps=3, asynchronous=asynchronous)
    cut = dataclasses.replace(section, runtime=runtime)
    from modalities.pretraining import trainer

    step, calls = trainer._step, []

    def dies(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(trainer, "_step", dies)
    with pytest.raises(KeyboardInterrupt):
        run_segment("cut", cut)
    monkeypatch.undo()
    assert not (tmp_path / "cut" / "checkpoint").exists()
    assert newest(tmp_path / "cut" / "state" / "checkpoints").name == f"{3:012d}"
    info = run_segment("cut", cut)["info"]
    assert info["resumed_at"] == 3
    assert trace(tmp_path / "cut") == trace(tmp_path / "whole")
    assert digests(tmp_path / "cut" / "checkpoint") == digests(tmp_path / "whole" / "checkpoint")


def test_stop_saves_and_goes_on(tmp_path, section, run_segment) -> None:
    run_segment("whole", section)
    state = tmp_path / "cut" / "state"
    state.mkdir(parents=True)
    (state / "stop").touch()
    with pytest.raises(InterruptedRunError, match="step 0 of 8"):
        run_segment("cut", section)
    (state / "stop").unlink()
    run_segment("cut", section)
    assert digests(tmp_path / "cut" / "checkpoint") == digests(tmp_path / "whole" / "checkpoint")


def test_micro_batches_do_not_matter(tmp_path, section, run_segment) -> None:
    """The masks are unequal, so an average of averages would be off by far more."""
    for size in (1, 2, 8):
        run_segment(str(size), dataclasses.replace(section, numerics=NumericsConfig(micro_batch=size)))
    reference = trace(tmp_path / "8")
    for size in ("1", "2"):
        for got, wanted in zip(trace(tmp_path / size), reference, strict=True):
            assert got[1] == pytest.approx(wanted[1], abs=2e-6)
            assert got[2] == pytest.approx(wanted[2], rel=1e-4)


def test_keeps_last_checkpoints(tmp_path, section, run_segment) -> None:
    runtime = RuntimeConfig(checkpoint_every_steps=1, keep_checkpoints=2, tensorboard=False, asynchronous=False)
    run_segment("a", dataclasses.replace(section, runtime=runtime))
    kept = sorted(p.name for p in (tmp_path / "a" / "state" / "checkpoints").iterdir())
    assert kept == [f"{6:012d}", f"{7:012d}"]
