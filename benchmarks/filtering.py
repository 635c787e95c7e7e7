"""Filter chain (Gopher repetition and quality, C4, FineWeb) beside datatrove 0.10.1, in one process, CPU time of one core.

    OMP_NUM_THREADS=1 python benchmarks/filtering.py results/benchmark-corpus/documents.jsonl.gz

Reads JSONL(.gz) with text and language. Prints a JSON line per row; the last one sums up: `ratio` with a vocabulary that
knows the documents, `ratio_new` with one that was warmed on other documents only, `agreement` of decisions and reasons.
"""

import argparse
import dataclasses
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from modalities.filtering import compiled, decisions, language, reference, scores
from modalities.filtering.config import DecisionSection, FilteringConfig, ScoresSection, scores_section, section
from modalities.filtering.memo import Vocabulary

RECIPES = {"en": "fineweb", "de": "fineweb2-deu_Latn"}
PROSE_SOURCES = (
    *("libreoffice-help-en-us", "libreoffice-help-de", "gimp-help-en", "gimp-help-de", "gnome-user-docs"),
    *("debian-handbook", "debian-faq", "debian-faq-de", "installation-guide-amd64", "anarchism", "austen"),
)


def main() -> None:
    """Measure each language, then print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="JSONL(.gz) with text, language and source")
    parser.add_argument("--documents", type=int, default=1000, help="documents measured per language")
    parser.add_argument(
        "--warm", type=int, default=12_000, help="other documents that warm the vocabulary for ratio_new"
    )
    parser.add_argument("--all-sources", action="store_true", help="not only prose")
    arguments = parser.parse_args()
    compiled.load("kernels")
    documents = read(arguments.corpus)
    if not arguments.all_sources:
        documents = [one for one in documents if one.get("source", "austen") in PROSE_SOURCES]
    rows = []
    for label, recipe in RECIPES.items():
        texts = [one["text"] for one in documents if one.get("language", "en") == label]
        if len(texts) > 20:
            count = min(arguments.documents, len(texts) // 2)
            rows.append(measure(label, recipe, texts[:count], texts[count : count + arguments.warm]))
            print(json.dumps(rows[-1]), flush=True)
    first = rows[0]
    agreed = sum(row["agreement"] * row["documents"] for row in rows) / sum(row["documents"] for row in rows)
    summary = {
        "name": "filter chain", "ours": first["ours_warm"], "peer": first["datatrove"], "ratio": first["ratio"],
        "ratio_new": first["ratio_new"], "unit": "MB/s", "agreement": agreed,
        "rows": {row["language"]: [row["ratio"], row["ratio_new"]] for row in rows},
    }  # fmt: skip
    print(json.dumps(summary))


def read(path: Path) -> list[dict[str, Any]]:
    """Read documents."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).split(b"\n")
    return [json.loads(line) for line in lines if line.strip()]


def measure(label: str, recipe: str, texts: list[str], others: list[str]) -> dict[str, Any]:
    """Return speeds and agreement for one language."""
    chosen = FilteringConfig(recipe=recipe)
    wanted, rules = scores_section(chosen, "s", None), section(chosen, "s", None)
    size = sum(len(text.encode()) for text in texts) / 1e6
    vocabulary = Vocabulary(wanted.words, limit=10**6)
    ours(others[:20], wanted, rules, vocabulary)  # loads spaCy and machine code
    ours(others, wanted, rules, vocabulary)
    known = vocabulary.num_chunks
    new_seconds, found = timed(lambda: ours(texts, wanted, rules, vocabulary))
    learned = vocabulary.num_chunks - known
    warm_seconds = min(timed(lambda: ours(texts, wanted, rules, vocabulary))[0] for _ in range(3))
    column = pa.array(texts, pa.large_string())
    language_seconds = timed(lambda: language.identify(*scores.buffers(column)))[0]
    peer_seconds, (expected, _) = timed(lambda: reference.decide(texts, rules.recipe))
    same = [a == b for a, b in zip(found, expected, strict=True)]
    warm, new = warm_seconds - language_seconds, new_seconds - language_seconds
    return {
        "language": label, "documents": len(texts), "megabytes": round(size, 2), "warmed_on": len(others),
        "chunks_known": known, "chunks_new": learned, "dropped": sum(reason is not None for reason in expected),
        "datatrove": round(size / peer_seconds, 3), "ours_warm": round(size / warm, 2), "ours_new": round(size / new, 2),
        "ratio": round(peer_seconds / warm, 1), "ratio_new": round(peer_seconds / new, 1),
        "language_identification": round(size / language_seconds, 1),
        "with_language_identification": round(size / warm_seconds, 2), "agreement": float(np.mean(same)),
    }  # fmt: skip


def ours(texts: list[str], wanted: ScoresSection, rules: DecisionSection, vocabulary: Vocabulary) -> list[str | None]:
    """Return our reasons, language identification left out of them (datatrove's chain has none here)."""
    without = dataclasses.replace(rules, recipe=dataclasses.replace(rules.recipe, language=None))
    reasons: list[str | None] = []
    for part in scores.slices(pa.chunked_array([pa.array(texts, pa.large_string())])):
        table = scores.as_table(part, scores.score_texts(part, wanted, vocabulary), wanted)
        frame = pl.DataFrame(pl.from_arrow(table.drop(["text"])))
        reasons += decisions.first_reasons(frame, without).to_pylist()
    return reasons


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds and result."""
    started = time.process_time()
    result = function()
    return time.process_time() - started, result


if __name__ == "__main__":
    main()
