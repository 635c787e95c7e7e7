"""No input takes more than 2 GiB, whatever it holds; long records are read past and counted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

LIMIT_BYTES = 2 << 30
CODE = """
import json, resource, sys
from pathlib import Path
from modalities.ingestion import inputs, stage
from modalities.ingestion.config import IngestionConfig, Source, section
from modalities.work import Work

folder = Path(sys.argv[1])
config = IngestionConfig(sources={"s": Source(paths=("in/*",), **json.loads(sys.argv[2]))}, corrupt_limit=1.0, url_filter=False)
(unit,) = inputs.units(config, "s", folder, folder / "cache")
(folder / "out").mkdir()
work = Work(node="ingestion", key="k", label="l", section=section(config, "s"), inputs={}, folder=folder / "out",
            unit=unit, cache=folder / "cache")
result = stage.run_unit(work)
# not ru_maxrss of this process: Linux carries the peak of the process that started it across exec
own = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
usage = [own * 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]
print(json.dumps({"peak": max(usage), "counts": dict(result.counts), "dropped": dict(result.dropped)}))
"""


def _ingest(folder: Path, **source: str) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", CODE, str(folder), json.dumps(source)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _compress(path: Path, pieces: list[bytes]) -> None:
    path.parent.mkdir()
    with path.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as writer:
        for piece in pieces:
            writer.write(piece)


LARGE = b"a" * (1 << 20)


@pytest.mark.parametrize(
    ("name", "source", "dropped", "kept"),
    [
        ("1.jsonl.zst", {}, {"too_large": 1}, 2),
        ("1.txt.zst", {"documents": "file"}, {"too_large": 1}, 0),
        ("1.txt.zst", {"documents": "paragraphs"}, {"too_large": 1}, 1),
        ("1.warc.zst", {}, {"too_large": 1}, 1),
    ],
)
def test_a_record_of_a_gibibyte_is_read_past(tmp_path: Path, name: str, source: Any, dropped: Any, kept: int) -> None:
    good = b'{"text": "good"}\n'
    around = {
        "jsonl": (good + b'{"text": "', b'"}\n' + good),
        "txt": (b"", b"\n\nlast"),
        "warc": (
            b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: %d\r\n\r\n" % (len(LARGE) << 10),
            b"\r\n\r\nWARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\ngood\r\n\r\n",
        ),
    }[name.split(".")[1]]
    _compress(tmp_path / "in" / name, [around[0], *[LARGE] * 1024, around[1]])
    found = _ingest(tmp_path, **source)
    assert found["dropped"] == dropped and found["counts"]["documents_out"] == kept
    assert found["peak"] < LIMIT_BYTES / 4


def test_a_parquet_value_of_100_megabytes_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["good", "a" * 100_000_000, "good"]}), tmp_path / "in/1.parquet")
    found = _ingest(tmp_path)
    assert found["dropped"] == {"too_large": 1} and found["counts"]["documents_out"] == 2
    assert found["peak"] < LIMIT_BYTES


def test_a_page_of_16_megabytes_is_extracted_or_rejected_in_bounded_memory(tmp_path: Path) -> None:
    page = b"<html><body>" + b"<p>A sentence of some length stands here.</p><br>" * 300_000
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    record = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: %d\r\n\r\n" % (len(head) + len(page))
    _compress(tmp_path / "in/1.warc.zst", [record, head, page, b"\r\n\r\n"])
    found = _ingest(tmp_path)
    assert found["counts"]["documents_in"] == 1 and found["peak"] < LIMIT_BYTES
