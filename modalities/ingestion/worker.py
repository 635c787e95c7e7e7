"""The child process of `modalities.ingestion.extraction`: pages in, texts out, over pipes.

A page comes as 8 bytes of length and UTF-8; an answer is 1 byte (index into `OUTCOMES`), 8 bytes of length and UTF-8.
The child ends when its input does, so it does not outlive its parent by more than a page.
"""

import json
import logging
import os
import resource
import signal
import sys
from typing import Any, BinaryIO

from modalities.ingestion.extraction import OUTCOMES, Outcome

MEMORY_BYTES = 1_200_000_000
_PARAGRAPH = "<p>One sentence of some length, and a second one.</p>"
_WARM_UP = tuple(f"<html><body><article>{_PARAGRAPH * number}</article></body></html>" for number in (9, 3))
"""Pages for what is made on first use: imports, tables, patterns, and (for a short page) the fallbacks' word lists: 0.4 s."""


def main() -> None:
    """Answer pages until the input ends."""
    settings = json.loads(sys.argv[1])
    pages, answers = _pipes()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group, and the parent decides
    for page in _WARM_UP:
        _extract(page, settings)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    answers.write(b"+")
    answers.flush()
    while head := pages.read(8):
        page = pages.read(int.from_bytes(head, "little")).decode("utf-8")
        # The timer's signal keeps its default effect, which ends the process wherever it is, in C code too.
        signal.setitimer(signal.ITIMER_PROF, settings["cpu_seconds"])
        outcome, text = _answer(page, settings)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(bytes([OUTCOMES.index(outcome)]) + len(text).to_bytes(8, "little") + text)
        answers.flush()


def _pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the two pipes, and send what libraries print elsewhere."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, answers


def _answer(page: str, settings: dict[str, Any]) -> tuple[Outcome, bytes]:
    try:
        text = _extract(page, settings)
        if text is None or not text.strip():
            return "extraction_empty", b""
        return "text", text.encode("utf-8")
    except UnicodeEncodeError as error:
        return "lone_surrogate", str(error).encode("utf-8", "backslashreplace")
    except MemoryError:
        return "extraction_memory", f"more than {MEMORY_BYTES} bytes of memory".encode()
    except Exception as error:  # whatever a page makes the libraries raise is that page's reason
        return "extraction_failed", f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")[:1000]


def _extract(page: str, settings: dict[str, Any]) -> str | None:
    import trafilatura
    from trafilatura.deduplication import LRUCache
    from trafilatura.settings import LRU_SIZE

    return trafilatura.extract(
        page,
        favor_precision=settings["favor_precision"],
        include_comments=settings["include_comments"],
        include_tables=settings["include_tables"],
        deduplicate=LRUCache(maxsize=LRU_SIZE) if settings["deduplicate"] else False,
    )


if __name__ == "__main__":
    main()
