"""Reasons to stop early: SIGTERM (from a scheduler), a stop file (from the process that started the ranks), or the clock."""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any


class StopRequest:
    """Collects reasons on one rank; the trainer sums them over ranks, so that all stop at the same step."""

    def __init__(self, *, file: Path | None, after_seconds: float | None) -> None:
        self._file = file
        self._after_seconds = after_seconds
        self._deadline: float | None = None
        self._signalled = False
        self._before: Any = None

    def wanted(self) -> bool:
        """Return whether this rank has a reason to stop. The clock starts at the first call, so that every job makes a step."""
        if self._deadline is None and self._after_seconds is not None:
            self._deadline = time.monotonic() + self._after_seconds
            return self._signalled
        late = self._deadline is not None and time.monotonic() > self._deadline
        return self._signalled or late or (self._file is not None and self._file.exists())

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self._signalled = True


def die_with_parent() -> None:
    """End this process when the one that started it ends, however that ends. Linux at once, elsewhere within a second."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
    try:
        import ctypes

        ctypes.CDLL("libc.so.6", use_errno=True).prctl(1, signal.SIGKILL)
    except OSError:
        return
