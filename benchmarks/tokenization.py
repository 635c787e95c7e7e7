"""Documents to token shards, whole process, file to file, beside `tokenizers` and Modalities.

    python benchmarks/tokenization.py [--folder results/benchmarks/tokenization] [--megatokens 100] [--modalities COMMAND]

The corpus is made once: texts of the packages in `PACKAGES` (`apt-get download`, no root) and of the shipped demo, cut at
web-like lengths, then repeated in shuffled order until it is long enough; the share of distinct text is printed. With
`--no-debian`, or where apt is missing, it is the demo alone, which flatters caches. A tokenizer of 50,257 ids is trained on it
by the stage. Then each path runs in a process of its own and is charged all CPU time of that process, imports and tokenizer
load included:

- parquet: the node `tokenization` on one unit with its masks; checksums, fsync and the 0.1 % sample included;
- jsonl: `encode_jsonl` on the same documents;
- tokenizers: `encode_batch_fast` on the first documents, read and written as in `parquet` (`--peer-megabytes`);
- modalities: its own index and pack on the same slice, if `--modalities` names its command; start-up
  (that of `--help`, twice) is shown beside it and taken off.

Rows are JSON; the last line is the summary.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa

from modalities.documents import DOCUMENTS, GroupWriter, decisions
from modalities.manifest import Manifest
from modalities.tokens import Shard
from modalities.work import Result, Upstream, Work

PACKAGES = (
    "linux-doc-6.1",
    "python3.11-doc",
    "debian-handbook",
    "libreoffice-help-en-us",
    "libreoffice-help-de",
    "postgresql-doc-15",
    "installation-guide-amd64",
    "anarchism",
)
DEMO = Path(__file__).parents[1] / "data/demo/austen.jsonl.gz"
GROUP_BYTES = 16_000_000
BYTES_PER_TOKEN = 4.1
END = "<|endoftext|>"


def main() -> None:
    """Make the corpus if it is not there, run every path, print rows and the summary."""
    arguments = _arguments()
    folder: Path = arguments.folder
    if arguments.run is not None:
        _child(arguments.run, folder)
        return
    if not (folder / "corpus.json").exists():
        _make_corpus(folder, arguments)
    corpus = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    print(json.dumps({"name": "corpus", **corpus}), flush=True)
    rows = {name: _measure(name, folder) for name in ("parquet", "jsonl", "tokenizers")}
    if arguments.modalities is not None:
        rows["modalities"] = _measure_modalities(folder, arguments.modalities)
    if (folder / "parquet/tokens.bin").read_bytes() != (folder / "jsonl/tokens.bin").read_bytes():
        raise SystemExit("parquet and jsonl gave different shards")
    if arguments.compare_all:
        _compare_all(folder, corpus["distinct_documents"])
    peer = "modalities" if "modalities" in rows else "tokenizers"
    ours, theirs = rows["jsonl"]["mtok_per_cpu_second"], rows[peer]["mtok_per_cpu_second"]
    summary = {
        "name": f"JSONL to token shards, peer {peer}",
        "ours": ours,
        "peer": theirs,
        "ratio": round(ours / theirs, 1),
        "unit": "Mtok per CPU-second, whole process",
    }
    print(json.dumps(summary))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("results/benchmarks/tokenization"))
    parser.add_argument("--megatokens", type=float, default=102)
    parser.add_argument("--peer-megabytes", type=float, default=10)
    parser.add_argument("--modalities", type=Path, default=None, help="The command `modalities` of Modalities 0.5.")
    parser.add_argument("--no-debian", action="store_true")
    parser.add_argument("--compare-all", action="store_true", help="Compare every document with tokenizers (minutes).")
    parser.add_argument("--run", choices=["parquet", "jsonl", "tokenizers"], default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- corpus ----------------------------------------------------------------------------------------------------------


def _make_corpus(folder: Path, arguments: argparse.Namespace) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = list(_cut([*_demo(), *([] if arguments.no_debian else _debian(folder / "debian"))]))
    distinct = sum(len(text.encode()) for text in texts)
    target = arguments.megatokens * 1e6 * BYTES_PER_TOKEN
    unit = folder / "unit"
    for role in ("ingestion", "scores", "filtering", "deduplication"):
        (unit / role).mkdir(parents=True)
    total = documents = 0
    slice_bytes = arguments.peer_megabytes * 1e6
    with (
        GroupWriter(unit / "ingestion/documents.parquet", DOCUMENTS) as writer,
        (folder / "corpus.jsonl").open("w", encoding="utf-8") as lines,
        (folder / "slice.jsonl").open("w", encoding="utf-8") as peer_lines,
    ):
        for group in _groups(texts, target):
            writer.write(_table(group, documents))
            for text in group:
                line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
                lines.write(line)
                if total < slice_bytes:
                    peer_lines.write(line)
                total += len(text.encode())
            documents += len(group)
    _write_masks(unit)
    _train(folder)
    about = {"documents": documents, "distinct_documents": len(texts)}
    about |= {"text_bytes": total, "distinct_bytes": distinct}
    (folder / "corpus.json").write_text(json.dumps(about), encoding="utf-8")


def _demo() -> Iterator[str]:
    import gzip

    with gzip.open(DEMO, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def _debian(folder: Path) -> Iterator[str]:
    from lxml import html

    folder.mkdir()
    for package in PACKAGES:
        got = subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True, check=False)
        if got.returncode:
            print(f"{package}: not to be had, left out", file=sys.stderr)
    for archive in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", archive.name, "tree"], cwd=folder, check=True)
    for path in sorted((folder / "tree").rglob("*.html")):
        if path.is_file() and path.stat().st_size:
            try:
                text = html.fromstring(path.read_bytes()).text_content()
            except (ValueError, html.etree.ParserError):
                continue
            yield "\n".join(line for line in map(str.strip, text.splitlines()) if line)
    shutil.rmtree(folder)


def _cut(texts: list[str]) -> Iterator[str]:
    """Cut texts at lengths as web pages have them: log-normal, median 1,900 characters, mean 3,100."""
    random = np.random.default_rng(0)
    for text in texts:
        start = 0
        while start < len(text):
            length = 1 + int(random.lognormal(7.55, 1.0))
            yield text[start : start + length]
            start += length


def _groups(texts: list[str], target: float) -> Iterator[list[str]]:
    random = np.random.default_rng(1)
    total, group, size = 0, [], 0
    while total < target:
        for index in random.permutation(len(texts)).tolist():
            group.append(texts[index])
            size += len(texts[index].encode())
            if size >= GROUP_BYTES or len(group) == 4096 or total + size >= target:
                yield group
                total, group, size = total + size, [], 0
                if total >= target:
                    return


def _table(texts: list[str], first: int) -> pa.Table:
    numbers = range(first, first + len(texts))
    columns = {"id": [f"d{n}" for n in numbers], "position": numbers, "text": texts}
    nothing = pa.nulls(len(texts), pa.string())
    return pa.table({**columns, "url": nothing, "metadata": nothing}, DOCUMENTS)


def _write_masks(unit: Path) -> None:
    from modalities.documents import GroupReader

    reader = GroupReader(unit / "ingestion/documents.parquet")
    for role, column in (("scores", "text"), ("filtering", "masked"), ("deduplication", None)):
        writer = None
        for table in reader.groups(["id"]):
            n = table.num_rows
            made = decisions(np.ones(n, np.bool_), pa.nulls(n, pa.string()))
            if column is not None:
                made = made.append_column(column, pa.nulls(n, pa.large_string()))
            writer = writer or GroupWriter(unit / role / f"{role}.parquet", made.schema)
            writer.write(made)
        assert writer is not None
        writer.__exit__(None, None, None)


def _upstream(folder: Path, info: dict[str, Any], units: tuple[Upstream, ...] = ()) -> Upstream:
    manifest = Manifest(
        node="",
        key="",
        label="",
        version=1,
        section={},
        upstream={},
        content="",
        counts={"documents_out": 1},
        info=info,
    )
    return Upstream(folder=folder, manifest=manifest, units=units)


def _train(folder: Path) -> None:
    from modalities.tokenization import tokenizer
    from modalities.tokenization.config import TokenizationConfig, TrainingConfig, tokenizer_section

    unit = folder / "unit"
    roles = ("ingestion", "scores", "filtering", "deduplication")
    inputs = {f"{r}:all": _upstream(unit / r, {}, (_upstream(unit / r, {}),)) for r in roles}
    config = TokenizationConfig(train=TrainingConfig(vocab_size=50_257, sample_bytes=40_000_000))
    result = tokenizer.run(_work(folder / "tokenizer", tokenizer_section(config, ("all",)), inputs, folder))
    (folder / "tokenizer.info").write_text(json.dumps(dict(result.info)), encoding="utf-8")


def _work(out: Path, section: Any, inputs: dict[str, Upstream], folder: Path) -> Work[Any]:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    return Work(node="", key="", label="benchmark", section=section, inputs=inputs, folder=out, cache=folder / "cache")


# --- what is measured ------------------------------------------------------------------------------------------------


def _charge(command: list[str]) -> tuple[float, float, str]:
    """Run a command; return its CPU and wall seconds, imports and children included, and what it printed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, done.stdout


def _measure(name: str, folder: Path) -> dict[str, Any]:
    cpu, wall, out = _charge([sys.executable, __file__, "--folder", str(folder), "--run", name])
    row = {"name": name, **json.loads(out.splitlines()[-1])}
    row |= {"cpu_seconds": round(cpu, 2), "wall_seconds": round(wall, 2)}
    row["mtok_per_cpu_second"] = round(row["tokens"] / cpu / 1e6, 3)
    print(json.dumps(row), flush=True)
    return row


def _child(name: str, folder: Path) -> None:
    report = {"parquet": _run_parquet, "jsonl": _run_jsonl, "tokenizers": _run_tokenizers}[name](folder)
    status = Path("/proc/self/status").read_text(encoding="ascii")  # ru_maxrss would count the parent before exec
    report["peak_memory_mb"] = int(status.partition("VmHWM:")[2].split()[0]) // 1024
    print(json.dumps(report))


def _run_parquet(folder: Path) -> dict[str, Any]:
    from modalities.tokenization import stage
    from modalities.tokenization.config import TokenizationConfig, section

    inputs = {r: _upstream(folder / "unit" / r, {}) for r in ("ingestion", "scores", "filtering", "deduplication")}
    info = json.loads((folder / "tokenizer.info").read_text(encoding="utf-8"))
    inputs["tokenizer"] = _upstream(folder / "tokenizer", info)
    result: Result = stage.run_unit(_work(folder / "parquet", section(TokenizationConfig()), inputs, folder))
    return {"tokens": result.counts["tokens"], **result.info}


def _run_jsonl(folder: Path) -> dict[str, Any]:
    from modalities.tokenization.jsonl import encode_jsonl

    (folder / "jsonl").mkdir(exist_ok=True)
    side = encode_jsonl(folder / "corpus.jsonl", folder / "jsonl/tokens", tokenizer=folder / "tokenizer/tokenizer.json")
    return {"tokens": side.tokens}


def _run_tokenizers(folder: Path) -> dict[str, Any]:
    from modalities.tokenization.encoding import Reference

    reference = Reference(folder / "tokenizer/tokenizer.json", special_in_text=False)
    with (folder / "slice.jsonl").open(encoding="utf-8") as lines:
        texts = pa.array([json.loads(line)["text"] for line in lines], pa.large_string())
    ids = reference.encode(texts).ids
    (folder / "tokenizers.bin").write_bytes(ids.astype(np.uint16).tobytes())
    return {"tokens": len(ids) + len(texts)}


def _compare_all(folder: Path, documents: int) -> None:
    """Compare the first `documents` documents of the shard, which are all distinct ones, with `tokenizers`."""
    from modalities.documents import GroupReader
    from modalities.tokenization.encoding import Reference

    reference = Reference(folder / "tokenizer/tokenizer.json", special_in_text=False)
    shard, first = Shard(folder / "parquet/tokens"), 0
    for table in GroupReader(folder / "unit/ingestion/documents.parquet").groups(["text"]):
        encoded = reference.encode(table.column("text").combine_chunks())
        for n in range(table.num_rows):
            ids = encoded.ids[encoded.offsets[n] : encoded.offsets[n + 1]]
            if not np.array_equal(shard.document(first + n)[:-1], ids):
                raise SystemExit(f"document {first + n} differs from tokenizers")
        first += table.num_rows
        if first >= documents:
            break
    row = {"name": "equal to tokenizers", "documents": first, "tokens": int(shard.offsets[first])}
    print(json.dumps(row), flush=True)


def _measure_modalities(folder: Path, command: Path) -> dict[str, Any]:
    """Run the peer's own two commands; its vocabulary comes as a Hugging Face directory."""
    work = folder / "modalities"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    source, index, packed = folder / "slice.jsonl", work / "slice.idx", work / "slice.pbin"
    config = {
        "settings": {
            "src_path": str(source.resolve()),
            "dst_path": str(packed.resolve()),
            "index_path": str(index.resolve()),
            "jq_pattern": ".text",
            "num_cpus": 2,
            "eod_token": END,
            "processing_batch_size": 100,
            "raw_samples_queue_size": 300,
            "processed_samples_queue_size": 300,
        },
        "tokenizer": {
            "component_key": "tokenizer",
            "variant_key": "pretrained_hf_tokenizer",
            "config": {
                "pretrained_model_name_or_path": str((folder / "tokenizer").resolve()),
                "padding": False,
                "truncation": False,
            },
        },
    }
    (work / "pack.yaml").write_text(json.dumps(config), encoding="utf-8")
    start, _, _ = _charge([str(command), "--help"])
    cpu, wall = 0.0, 0.0
    for rest in (
        ["create_raw_index", str(source), "--index_path", str(index)],
        ["pack_encoded_data", str(work / "pack.yaml")],
    ):
        used, passed, _ = _charge([str(command), "data", *rest])
        cpu, wall = cpu + used, wall + passed
    with packed.open("rb") as file:
        tokens = int.from_bytes(file.read(8), "little") // int.from_bytes(file.read(4), "little")
    row = {"name": "modalities", "tokens": tokens, "cpu_seconds": round(cpu, 2), "wall_seconds": round(wall, 2)}
    row |= {"start_up_cpu_seconds": round(2 * start, 2), "whole_mtok_per_cpu_second": round(tokens / cpu / 1e6, 3)}
    row["mtok_per_cpu_second"] = round(tokens / (cpu - 2 * start) / 1e6, 3)
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
