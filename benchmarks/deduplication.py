"""MinHash beside datatrove: signatures (from text), and buckets + clusters (from equal signatures), in CPU time of one core.

    OMP_NUM_THREADS=1 python benchmarks/deduplication.py [--corpus FILE] [--language en] [--documents 20000]

FILE is JSONL(.gz) or Parquet with columns text and, if there, language. Without it, passages of the shipped novels are
taken, each about 1,500 characters. Clusters are timed on the documents and at least as many near-copies of them. `cold`
starts with no known words, `new` with those of the first half while the second half is timed, `warm` with all.
"""

import argparse
import gzip
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from modalities.deduplication import clusters, minhash, signatures, words  # noqa: E402
from modalities.deduplication import config as keys  # noqa: E402
from modalities.manifest import Manifest  # noqa: E402
from modalities.work import Upstream, Work  # noqa: E402

PEER_DOCUMENTS = 1500
"""datatrove does some 250 documents a second; its rate is taken from so many, ours from all."""
RANKS = 4
CLUSTERED = 20_000
CONFIG = keys.DeduplicationConfig()
PARAMETERS = minhash.Parameters(ngram=5, buckets=14, hashes_per_bucket=8, seed=1, hash="xxhash64")


def main() -> None:
    """Run both comparisons and print a JSON line each, then one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="JSONL(.gz) or Parquet with text and language")
    parser.add_argument("--language", default="en", help="documents of this language only")
    parser.add_argument("--documents", type=int, default=20_000, help="at most so many documents")
    options = parser.parse_args()
    texts = list(read(options.corpus, options.language, options.documents))
    signed = measure_signatures(texts, options.language)
    clustered = measure_clusters(texts, options.language)
    last = {
        "name": "deduplication",
        "ours": signed["ours"],
        "peer": signed["peer"],
        "ratio": signed["ratio"],
        "unit": "MB of text per CPU second",
        "agreement": min(signed["agreement"], clustered["agreement"]),
        "ratio_new": signed["ratio_new"],
        "ratio_cold": signed["ratio_cold"],
        "ratio_clusters": clustered["ratio"],
        "documents": len(texts),
    }
    print(json.dumps(last), flush=True)


def read(path: Path | None, language: str, number: int) -> Iterator[str]:
    """Yield texts of a corpus, or passages of the shipped novels."""
    if path is None:
        with gzip.open(ROOT / "data/demo/austen.jsonl.gz", "rt", encoding="utf-8") as file:
            whole = "\n".join(json.loads(line)["text"] for line in file)
        paragraphs, passage = whole.split("\n"), ""
        texts = []
        for paragraph in paragraphs:
            passage += paragraph + "\n"
            if len(passage) > 1500:
                texts.append(passage)
                passage = ""
        yield from texts[:number]
        return
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        rows: Any = table.to_pylist()
    else:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    for row in rows:
        if row.get("language", row.get("lang", language)) == language and number > 0:
            number -= 1
            yield row["text"]


def megabytes(texts: list[str]) -> float:
    """Return the size of texts in 10^6 bytes."""
    return sum(len(text.encode()) for text in texts) / 1e6


def measure_signatures(texts: list[str], language: str) -> dict[str, Any]:
    """Compare signatures, bit for bit, and their speed."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
    from datatrove.utils.hashing import HashConfig

    config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="xxhash"))
    stage = MinhashDedupSignature("unused", config=config, language=language)
    stage.get_shingles("One text to load everything that is loaded at first use.")
    some = texts[:: max(1, len(texts) // PEER_DOCUMENTS)][:PEER_DOCUMENTS]
    start = time.process_time()
    shingles = [stage.get_shingles(text) for text in some]
    expected = [np.concatenate(stage.get_signature(found)) if found.size else None for found in shingles]
    peer = megabytes(some) / (time.process_time() - start)

    sign(words.splitter(language), some[:3])  # compile
    half = len(texts) // 2
    cold = rate(words.splitter(language), texts)
    fresh = words.splitter(language)
    sign(fresh, texts[:half])
    new = rate(fresh, texts[half:])
    warm = max(rate(fresh, texts) for _ in range(3))
    has, values = sign(fresh, some)
    equal = [
        bool(h) == (e is not None) and (e is None or np.array_equal(v, e.astype(np.uint64)))
        for h, v, e in zip(has, values, expected, strict=True)
    ]
    row = {
        "name": "signatures",
        "ours": round(warm, 2),
        "peer": round(peer, 3),
        "ratio": round(warm / peer, 1),
        "ratio_new": round(new / peer, 1),
        "ratio_cold": round(cold / peer, 1),
        "unit": "MB of text per CPU second",
        "agreement": sum(equal) / len(equal),
        "megabytes": round(megabytes(texts), 1),
    }
    print(json.dumps(row), flush=True)
    return row


def sign(splitter: words.Splitter, texts: list[str]) -> tuple[list[Any], list[Any]]:
    """Return which texts have a signature, and all signatures."""
    has: list[Any] = []
    values: list[Any] = []
    for part in signatures.batches(pa.array(texts, pa.large_string())):
        found = minhash.signatures(splitter.split(part), parameters=PARAMETERS)
        has += list(found.has)
        values += list(found.values)
    return has, values


def rate(splitter: words.Splitter, texts: list[str]) -> float:
    """Return MB per CPU second, from an Arrow column to columns of band keys, as the node does it."""
    column = pa.array(texts, pa.large_string())
    start = time.process_time()
    for part in signatures.batches(column):
        signatures.bands(splitter.split(part), minhash_parameters=PARAMETERS)
    return megabytes(texts) / (time.process_time() - start)


def measure_clusters(texts: list[str], language: str) -> dict[str, Any]:
    """Compare the partition of documents, and the time from signatures to clusters."""
    rng = np.random.default_rng(0)
    copies = []
    for text in itertools.islice(itertools.cycle(texts), max(len(texts), CLUSTERED - len(texts))):
        parts = text.split()
        keep = rng.random(len(parts)) > rng.random() * 0.15
        copies.append(" ".join(part for part, kept in zip(parts, keep, strict=True) if kept))
    joined = texts + copies
    texts = [joined[i] for i in rng.permutation(len(joined))]
    splitter = words.splitter(language)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        edges = np.linspace(0, len(texts), RANKS + 1).astype(int)
        units = []
        for rank in range(RANKS):
            part = texts[edges[rank] : edges[rank + 1]]
            units.append(write_unit(folder, rank, part, splitter))
        small = write_unit(folder, RANKS, texts[:50], splitter)
        run_clusters(folder / "small", [small], language)  # compile
        ours, own_seconds = run_clusters(folder / "ours", units, language)
        theirs, peer_seconds = run_datatrove(folder, edges)
    row = {
        "name": "buckets and clusters",
        "ours": round(len(texts) / own_seconds),
        "peer": round(len(texts) / peer_seconds),
        "ratio": round(peer_seconds / own_seconds, 1),
        "unit": "documents per CPU second",
        "agreement": float(ours == theirs),
        "clusters": len(theirs),
        "documents": len(texts),
    }
    print(json.dumps(row), flush=True)
    return row


def write_unit(folder: Path, rank: int, texts: list[str], splitter: words.Splitter) -> Upstream:
    """Write the signatures of one unit in our form, and for datatrove."""
    own = folder / f"unit-{rank}"
    own.mkdir()
    has, values = sign(splitter, texts)
    column = pa.array(texts, pa.large_string())
    high, low = signatures.text_hashes(column)
    parts = [
        pa.table({"bands": signatures.bands(splitter.split(part), minhash_parameters=PARAMETERS)})
        for part in signatures.batches(column)
    ]
    table = pa.concat_tables(parts)
    ids = pa.array([f"{rank}-{i:06d}" for i in range(len(texts))])
    for label, array in (("id", ids), ("text_high", high), ("text_low", low), ("excerpt", ids)):
        table = table.append_column(label, array)
    table = table.append_column("contaminated", pa.nulls(len(texts), pa.string()))
    pq.write_table(table, own / signatures.FILE, row_group_size=4096)
    signed = np.flatnonzero(has)
    record = np.dtype([(f"f{i}", "<u8") for i in range(8)] + [("d", "<u4")])
    for band in range(14):
        rows = np.zeros(len(signed), record)
        for i in range(8):
            rows[f"f{i}"] = np.array(values)[signed, 8 * band + i]
        rows["d"] = signed
        rows.sort(order=record.names)
        target = folder / f"signatures/bucket_{band:03d}"
        target.mkdir(parents=True, exist_ok=True)
        if rank < RANKS:
            rows.tofile(target / f"{rank:05d}.minhash.sig")
    return upstream(own, {"ingestion": {"key": str(rank)}})


def upstream(folder: Path, made_from: Any = None, units: tuple[Upstream, ...] = ()) -> Upstream:
    """Wrap a folder as something to read."""
    manifest = Manifest(node="", key="", label="", version=1, section={}, upstream=made_from or {}, content="")
    return Upstream(folder=folder, manifest=manifest, units=units)


def run_clusters(folder: Path, units: list[Upstream], language: str) -> tuple[set[frozenset[tuple[int, int]]], float]:
    """Run our node, files included; return the clusters as sets of (rank, row), and CPU seconds of the node."""
    heldout = folder / "heldout"
    heldout.mkdir(parents=True)
    schema = pa.schema([(name, pa.string()) for name in ("source", "unit", "id", "text")] + [("row", pa.int64())])
    pq.write_table(schema.empty_table(), heldout / "documents.parquet")
    out = folder / "out"
    out.mkdir()
    inputs = {"signatures:s": upstream(folder, units=tuple(units)), "heldout": upstream(heldout)}
    section = keys.clusters_section(CONFIG, {"s": language})
    work = Work(node="", key="", label="", section=section, inputs=inputs, folder=out, cache=folder / "cache")
    start = time.process_time()
    clusters.run(work)
    seconds = time.process_time() - start
    found: dict[int, set[tuple[int, int]]] = {}
    for file in ("drops", "clusters"):
        for row in pq.read_table(out / f"{file}.parquet", columns=["unit", "row", "cluster"]).to_pylist():
            found.setdefault(row["cluster"], set()).add((int(row["unit"]), row["row"]))
    return {frozenset(members) for members in found.values()}, seconds


def run_datatrove(folder: Path, edges: Any) -> tuple[set[frozenset[tuple[int, int]]], float]:
    """Run datatrove's stages 2 and 3; return the clusters as sets of (rank, row), and their CPU seconds."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster
    from datatrove.utils.hashing import HashConfig
    from datatrove.utils.logging import logger

    logger.remove()
    config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="xxhash"))
    start = time.process_time()
    for band in range(14):
        MinhashDedupBuckets(str(folder / "signatures"), str(folder / "pairs"), config=config).run(None, band, 14)
    MinhashDedupCluster(str(folder / "pairs"), str(folder / "theirs"), config=config, save_cluster_id=True).run(
        None, 0, 1
    )
    seconds = time.process_time() - start
    found: dict[int, set[tuple[int, int]]] = {}
    for rank in range(len(edges) - 1):
        path = folder / f"theirs/{rank:06d}.clusters"
        if path.exists():
            for row, cluster in np.fromfile(path, "<u4").reshape(-1, 2).tolist():
                found.setdefault(cluster, set()).add((rank, row))
    return {frozenset(members) for members in found.values()}, seconds


if __name__ == "__main__":
    main()
