"""Build sequence records and read batches; synthetic token shards.

    python benchmarks/packing.py [--folder results/benchmarks/packing] [--gigatokens 10] [--shard-gigatokens 1]

- build: the node `packing` on shards whose `.bin` is a sparse file and whose documents have lengths as on the web (log-normal,
  mean 600 tokens), each size in a process of its own: tokens per CPU-second without imports and compilation, peak
  memory, bytes on disk. Two sizes give the growth; shards are independent, so it is linear and stated for 15 T tokens.
- windows: padding of best_fit by window against one window over the whole shard.
- read: batches of 512 rows of 1,024 tokens at random from 8 shards of real bytes, warm (wall and CPU time of the thread; best
  and median) and cold (page cache of the files dropped by `posix_fadvise`, prefetch depth 4), beside datatrove's reader for
  random access on the same bytes.

Rows are JSON; the last line is the summary: build in tokens per CPU-second against the target of 200 M.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from modalities.manifest import Manifest
from modalities.packing import config, index, records, stage
from modalities.packing.reader import Prefetcher, SequenceReader
from modalities.tokens import HEADER, MAGIC, Shard
from modalities.work import Result, Upstream, Work

SEQUENCE_LENGTH, ROWS = 1024, 512
TARGET = 200e6
SHARD_OF_READ_TOKENS = 16_000_000


def main() -> None:
    """Run all parts, print rows and the summary."""
    arguments = _arguments()
    if arguments.build is not None:
        tokens, method = arguments.build
        print(json.dumps(build(arguments.folder, int(tokens), arguments.shard_gigatokens, method)))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    built = [
        _child(arguments, int(size * 1e9), method)
        for method in ("concatenate", "best_fit")
        for size in (arguments.gigatokens / 10, arguments.gigatokens)
    ]
    for row in (*built, *windows(), *read(arguments.folder)):
        print(json.dumps(row), flush=True)
    best = next(row for row in built if row["method"] == "concatenate" and row["tokens"] > arguments.gigatokens * 0.9e9)
    print(
        json.dumps(
            {
                "name": "packing index",
                "ours": best["tokens_per_cpu_second"],
                "peer": TARGET,
                "ratio": round(best["tokens_per_cpu_second"] / TARGET, 2),
                "unit": "tokens per CPU-second, against the target",
            }
        )
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("results/benchmarks/packing"))
    parser.add_argument("--gigatokens", type=float, default=10.0)
    parser.add_argument("--shard-gigatokens", type=float, default=1.0)
    parser.add_argument("--build", nargs=2, metavar=("TOKENS", "METHOD"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _child(arguments: argparse.Namespace, tokens: int, method: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--folder", str(arguments.folder), "--build", str(tokens), method]
    command += ["--shard-gigatokens", str(arguments.shard_gigatokens)]
    row: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return row


# --- build -----------------------------------------------------------------------------------------------------------


def build(folder: Path, tokens: int, shard_gigatokens: float, method: Any) -> dict[str, Any]:
    """Pack `tokens` tokens of sparse shards and measure the stage alone."""
    settings = config.PackingConfig(sequence_length=SEQUENCE_LENGTH, method=method)
    per_shard = min(tokens, int(shard_gigatokens * 1e9))
    _pack_unit(_sparse_shard(folder / "warm", 10_000), folder / "warm-packed", settings)
    before, units, documents = _peak_mb(), [], 0
    used = 0.0
    for number in range(tokens // per_shard):
        shard = _sparse_shard(folder / f"sparse-{number}", per_shard)
        started = time.process_time()
        units.append(_pack_unit(shard, folder / f"packed-{number}", settings))
        used += time.process_time() - started
        documents += units[-1].manifest.counts["documents_in"]
    started = time.process_time()
    gathered = folder / "gathered"
    gathered.mkdir(exist_ok=True)
    stage.gather(_work(config.section(settings, ("web",)), gathered, own_units=tuple(units)))
    used += time.process_time() - started
    total = sum(unit.manifest.counts["tokens"] for unit in units)
    on_disk = sum(file.stat().st_size for unit in units for file in unit.folder.iterdir())
    return {
        "name": "build",
        "method": method,
        "tokens": total,
        "documents": documents,
        "shards": len(units),
        "cpu_seconds": round(used, 2),
        "tokens_per_cpu_second": round(total / used),
        "documents_per_cpu_second": round(documents / used),
        "peak_mb": round(_peak_mb()),
        "peak_mb_of_imports": round(before),
        "record_bytes_per_token": round(on_disk / total, 4),
        "cpu_hours_for_15_t_tokens": round(used / total * 15e12 / 3600, 1),
        "padding_share": round(units[0].manifest.info["padding_share"], 6),
        "cut_share": round(units[0].manifest.info["cut_share"], 6),
    }


def _lengths(tokens: int, seed: int) -> np.ndarray[Any, Any]:
    """Document lengths with a mean of about 600 tokens: log-normal, from 2 to 100,000."""
    random = np.random.default_rng(seed)
    lengths = np.clip(np.exp(random.normal(5.9, 1.0, int(tokens / 550) + 1000)), 2, 1e5).astype(np.int32)
    return lengths[: int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), tokens))]


def _sparse_shard(folder: Path, tokens: int) -> Upstream:
    folder.mkdir(parents=True, exist_ok=True)
    lengths = _lengths(tokens, seed=tokens)
    ends = np.cumsum(lengths, dtype=np.int64)
    with (folder / "tokens.idx").open("wb") as file:
        file.write(HEADER.pack(MAGIC, 1, 8, len(lengths), len(lengths) + 1))
        for part in (lengths, (ends - lengths) * 2, np.arange(len(lengths) + 1, dtype=np.int64)):
            file.write(part.data)
    with (folder / "tokens.bin").open("wb") as file:
        file.truncate(int(ends[-1]) * 2)
    return _upstream("tokenization", folder, Result(content=folder.name))


def _pack_unit(shard: Upstream, folder: Path, settings: config.PackingConfig) -> Upstream:
    folder.mkdir(parents=True, exist_ok=True)
    work = _work(config.unit_section(settings), folder, inputs={"tokenization": shard}, unit={"source": "web"})
    return _upstream("packing", folder, stage.run_unit(work))


def _work(section: Any, folder: Path, **more: Any) -> Work[Any]:
    fields: dict[str, Any] = {"inputs": {}} | more
    return Work(node="packing", key="k", label="packing", section=section, folder=folder, cache=folder, **fields)


def _upstream(node: str, folder: Path, result: Result, units: tuple[Upstream, ...] = ()) -> Upstream:
    made = Manifest(
        node=node,
        key=folder.name,
        label=node,
        version=1,
        section={},
        upstream={},
        content=result.content,
        counts=result.counts,
        dropped=result.dropped,
        info=result.info,
    )
    return Upstream(folder=folder, manifest=made, units=units)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- windows ---------------------------------------------------------------------------------------------------------


def windows() -> list[dict[str, Any]]:
    """Measure the padding of best_fit by window; cuts do not depend on it."""
    lengths = _lengths(600_000_000, seed=0)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    rows = []
    for window in (1024, 8192, 65_536, len(lengths)):
        sequences = pairs = 0
        for counts, pieces in records.best_fit(offsets, sequence_length=SEQUENCE_LENGTH, window_documents=window):
            sequences += len(counts)
            pairs += int(pieces[:, 1].sum()) - len(counts)
        rows.append(
            {
                "name": "best_fit window",
                "window_documents": window,
                "padding_share": round(1 - pairs / (sequences * SEQUENCE_LENGTH), 6),
                "cut_share": round(float((lengths > SEQUENCE_LENGTH + 1).mean()), 6),
            }
        )
    return rows


# --- read ------------------------------------------------------------------------------------------------------------


def read(folder: Path) -> list[dict[str, Any]]:
    """Measure batches of ROWS x SEQUENCE_LENGTH tokens."""
    shards = [_real_shard(folder / f"real-{number}", number) for number in range(8)]
    rows: list[dict[str, Any]] = []
    for method in ("concatenate", "best_fit"):
        settings = config.PackingConfig(sequence_length=SEQUENCE_LENGTH, method=method)
        units = tuple(_pack_unit(shard, folder / f"{shard.folder.name}-{method}", settings) for shard in shards)
        gathered = folder / f"gathered-{method}"
        gathered.mkdir(exist_ok=True)
        result = stage.gather(_work(config.section(settings, ("web",)), gathered, own_units=units))
        packing = _upstream("packing", gathered, result, units)
        tokenization = {"web": _upstream("tokenization", folder, Result(content=""), tuple(shards))}
        reader = SequenceReader.open(packing, tokenization, data_seed=0)
        for shard in shards:  # warm the page cache
            Shard(shard.folder / "tokens").tokens.max()
        rows.append(_read_row(f"read warm, {method}", lambda at, r=reader: r.batch(at * ROWS, (at + 1) * ROWS), 200))
        last = index.read(gathered).sources[0].sequences // ROWS
        rows.append(_cold(SequenceReader.open(packing, tokenization, data_seed=1), shards, last, method))
    rows.append(_datatrove(shards[0]))
    return rows


def _read_row(name: str, call: Any, number: int) -> dict[str, Any]:
    wall, cpu = [], []
    for at in range(number):
        started, busy = time.perf_counter(), time.thread_time()
        call(at)
        wall.append(1e3 * (time.perf_counter() - started))
        cpu.append(1e3 * (time.thread_time() - busy))
    return {
        "name": name,
        "tokens": ROWS * SEQUENCE_LENGTH,
        "milliseconds_best": round(min(wall), 3),
        "milliseconds_median": round(statistics.median(wall), 3),
        "cpu_milliseconds_best": round(min(cpu), 3),
        "cpu_milliseconds_median": round(statistics.median(cpu), 3),
    }


def _cold(reader: SequenceReader, shards: list[Upstream], last: int, method: str) -> dict[str, Any]:
    for shard in shards:
        with (shard.folder / "tokens.bin").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    batches = min(last, 40)
    started = time.perf_counter()
    with Prefetcher(reader, [(at * ROWS, (at + 1) * ROWS) for at in range(batches)], depth=4) as prefetched:
        for _ in prefetched:
            pass
    used = time.perf_counter() - started
    return {
        "name": f"read cold, {method}, prefetch depth 4",
        "tokens": ROWS * SEQUENCE_LENGTH,
        "milliseconds_mean": round(1e3 * used / batches, 3),
    }


def _real_shard(folder: Path, seed: int) -> Upstream:
    shard = _sparse_shard(folder, SHARD_OF_READ_TOKENS)
    size = (folder / "tokens.bin").stat().st_size // 2
    with (folder / "tokens.bin").open("wb") as file:
        file.write(np.random.default_rng(seed).integers(0, 50_000, size, dtype=np.uint16).data)
        file.flush()
        os.fsync(file.fileno())
    return shard


def _datatrove(shard: Upstream) -> dict[str, Any]:
    from datatrove.utils.dataset import DatatroveFileDataset

    data = DatatroveFileDataset(str(shard.folder / "tokens.bin"), seq_len=SEQUENCE_LENGTH, token_size=2)
    places = np.random.default_rng(0).integers(0, len(data), (20, ROWS))
    name = "read warm, datatrove 0.10.1 at random"
    return _read_row(name, lambda at: [data[int(place)] for place in places[at]], len(places))


if __name__ == "__main__":
    main()
