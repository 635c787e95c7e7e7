"""Text out of HTML, in a process of its own that may hang, crash or run out of memory without harm.

The limit of a page is CPU time, kept by the child's own interval timer, so that it does not depend on how busy the machine is.
A page close to the limit can still fall on either side on another machine; ordinary pages take a hundredth of it. Each page
is extracted as if it were the only one: trafilatura's record of repeated segments, which it keeps for the whole life of a
process, starts empty for every page. Otherwise a text would depend on the pages before it, on units, and on restarts.

Cost: 10 to 15 ms a page, 0.5 s for a start.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Literal

from modalities.errors import InterruptedRunError, ModalitiesError, OutOfMemoryError
from modalities.ingestion.config import Extraction

Outcome = Literal[
    "text", "extraction_empty", "extraction_failed", "extraction_timeout", "extraction_memory", "lone_surrogate"
]
OUTCOMES: tuple[Outcome, ...] = ("text", "extraction_empty", "extraction_failed", "extraction_memory", "lone_surrogate")
"""What a child answers, by number. It does not live to answer `extraction_timeout`."""


class Extractor:
    """A child process that is started when it is needed and again after it died."""

    def __init__(self, settings: Extraction) -> None:
        self._settings = settings
        self._child: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        """How often a page killed the child."""

    def extract(self, html: str) -> tuple[Outcome, str]:
        """Return a page's main text, or why there is none and what is known of it. `html` can be written as UTF-8."""
        if self._child is None:
            self._child = self._start()
        assert self._child.stdin is not None and self._child.stdout is not None
        page = html.encode("utf-8")
        try:
            self._child.stdin.write(len(page).to_bytes(8, "little") + page)
            self._child.stdin.flush()
            head = self._child.stdout.read(9)
            if len(head) == 9:
                return OUTCOMES[head[0]], self._child.stdout.read(int.from_bytes(head[1:], "little")).decode("utf-8")
        except BrokenPipeError:
            pass
        self.restarts += 1
        status = self._end()
        if -status == signal.SIGPROF:
            return "extraction_timeout", f"more than {self._settings.cpu_seconds:g} s of CPU time"
        # These come from outside and say nothing about the page: to drop it would make the result depend on the machine.
        if -status == signal.SIGKILL:
            raise OutOfMemoryError("extractor: killed from outside, most likely for memory; give the job 2 GiB or more")
        if -status in (signal.SIGTERM, signal.SIGHUP):
            raise InterruptedRunError(f"extractor: stopped by {_status_name(status)}; start the run again")
        return "extraction_failed", f"the extractor died ({_status_name(status)})"

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
        settings = json.dumps(dataclasses.asdict(self._settings))
        child = subprocess.Popen(
            [sys.executable, "-m", "modalities.ingestion.worker", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        assert child.stdout is not None
        if child.stdout.read(1) != b"+":
            status = _status_name(child.wait())
            raise ModalitiesError(f"extractor: expected it to start, got {status}; see above and reinstall trafilatura")
        return child

    def _end(self) -> int:
        assert self._child is not None and self._child.stdin is not None and self._child.stdout is not None
        self._child.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        status = self._child.wait()
        self._child = None
        return status

    def __enter__(self) -> "Extractor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            if error is not None:
                self._child.kill()
            self._end()


def _status_name(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
