"""The plan node `pretraining`: one segment, from its first step to its last.

One rank trains in this process; several are started by torchrun, the only launcher, and end when this process does.
Resume checkpoints, metrics and TensorBoard events live in `work.state` while the training runs, so they survive a kill;
at the end the latter two move to the instance's folder:

    checkpoint/      the state after `end_step`; see modalities/checkpoint.py
    metrics.jsonl    one line per logged step of this segment; see metrics.py
    tensorboard/     the same as events
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from modalities import errors
from modalities.manifest import write_json
from modalities.pretraining.config import SegmentSection
from modalities.work import Result, Upstream, Work, digest_of

_USER_ERRORS = {
    name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, errors.ModalitiesError)
}


def run(work: Work[SegmentSection]) -> Result:
    """Train one segment. The content is a digest of weights, optimizer state and step, the same in every layout."""
    from modalities.pretraining.rank import Job

    state = work.state if work.state is not None else work.folder / "state"
    state.mkdir(parents=True, exist_ok=True)
    (state / "stop").unlink(missing_ok=True)
    job = Job(
        section=work.section,
        inputs=work.inputs,
        vocab_size=vocabulary(work.inputs["tokenizer"]),
        folder=work.folder,
        state=state,
    )
    alone = work.section.numerics.world_size == 1
    summary = _in_this_process(work, job) if alone else train_in_ranks(job, report=_reporter(work))
    return _finish(work, state, summary)


def vocabulary(tokenizer: Upstream) -> int:
    """Return the number of ids of the tokenizer, added tokens included."""
    stated = tokenizer.manifest.info.get("vocab_size")
    if stated is not None:
        return int(stated)
    from tokenizers import Tokenizer

    ids: dict[str, int] = Tokenizer.from_file(str(tokenizer.folder / "tokenizer.json")).get_vocab(
        with_added_tokens=True
    )
    return max(ids.values()) + 1


def _finish(work: Work[SegmentSection], state: Path, summary: dict[str, Any]) -> Result:
    from modalities.checkpoint import digests

    for name in ("metrics.jsonl", "tensorboard"):
        if (state / name).exists():
            shutil.move(state / name, work.folder / name)
    if work.state is None:
        shutil.rmtree(state)
    found = digests(work.folder / "checkpoint")
    found.pop("random", None)
    info = {**summary["info"], "start_step": work.section.start_step, "sequence_length": work.section.sequence_length}
    return Result(
        content=digest_of(info["step"], found),
        counts={"tokens": info["tokens_seen"], "steps": work.section.end_step - work.section.start_step},
        info=info,
        numerics=summary["numerics"],
    )


def _reporter(work: Work[SegmentSection]) -> Any:
    per_step, end = work.section.tokens_per_step, work.section.end_step

    def report(step: int, loss: float | None) -> None:
        work.progress.update(step * per_step, end * per_step, "tokens", loss=loss, step=step)

    return report


def _in_this_process(work: Work[SegmentSection], job: Any) -> dict[str, Any]:
    from modalities.pretraining.rank import run_rank

    return run_rank(job, report=_reporter(work))


def train_in_ranks(job: Any, *, report: Callable[[int, float | None], None]) -> dict[str, Any]:
    """Start the ranks under torchrun, pass on SIGTERM by a stop file, and raise the error of the rank that failed first."""
    state = job.state
    for leftover in [*state.glob("error-*.json"), state / "summary.json", state / "progress"]:
        leftover.unlink(missing_ok=True)
    write_json(state / "job.json", job.to_json())
    ranks = job.section.numerics.world_size
    command = [sys.executable, "-m", "modalities.pretraining.launcher", str(ranks), str(state / "job.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.section.numerics.threads_per_rank)}
    with _stop_file(state / "stop"), (state / "ranks.log").open("wb") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while launcher.poll() is None:
                time.sleep(0.2)
                _pass_on(state / "progress", report)
        except BaseException:
            launcher.terminate()
            launcher.wait()
            raise
    if launcher.returncode == 0 and (state / "summary.json").exists():
        summary: dict[str, Any] = json.loads((state / "summary.json").read_text(encoding="utf-8"))
        return summary
    raise _first_error(state, launcher.returncode)


def _pass_on(path: Path, report: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        step, loss = path.read_text(encoding="utf-8").split()
        report(int(step), None if loss == "None" else float(loss))


@contextlib.contextmanager
def _stop_file(path: Path) -> Iterator[None]:
    """Turn SIGTERM into a file that rank 0 looks for: torchrun's own handling would leave the ranks no time to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(_signal: int, _frame: FrameType | None) -> None:
        path.touch()

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _first_error(state: Path, code: int) -> Exception:
    """Return the earliest error that a rank left, as the class it had."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in state.glob("error-*.json")]
    if not found:
        tail = (state / "ranks.log").read_text(encoding="utf-8", errors="replace")[-2000:]
        return RuntimeError(
            f"pretraining: a rank ended with exit code {code} and left no error; the end of its log:\n{tail}"
        )
    first = min(found, key=lambda error: error["time"])
    if first["class"] in _USER_ERRORS:
        return _USER_ERRORS[first["class"]](first["message"])
    return RuntimeError(
        f"pretraining: rank {first['rank']}: {first['class']}: {first['message']}\n{first['traceback']}"
    )
