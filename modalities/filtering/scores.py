"""Scores of documents: every count and ratio that a rule needs, as columns beside the documents. No thresholds here.

Work goes row group by row group and inside it in slices of about 1 MB, so that memory is bounded by the vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modalities.documents import GroupReader, GroupWriter
from modalities.filtering import compiled, language, measures, own, reference, rewriting, words
from modalities.filtering.config import ScoresSection
from modalities.filtering.measures import Columns
from modalities.filtering.memo import Array, Encoded, Vocabulary
from modalities.work import Result, Work

SLICE_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Scores of some documents, and the texts after rewriting, where these are others than before."""

    columns: Columns
    languages: list[str]
    rewritten: list[bytes | None]
    num_reference: int
    """Documents that went through datatrove."""


def run_unit(work: Work[ScoresSection]) -> Result:
    """Write `scores.parquet`, row by row beside the documents of one unit."""
    section = work.section
    reader = GroupReader(work.inputs["ingestion"].folder / "documents.parquet")
    backend = resolve_backend(section)
    vocabulary = _vocabulary(work) if backend == "memo" else None
    text_bytes, num_reference = 0, 0
    with GroupWriter(work.folder / "scores.parquet", schema(section)) as writer:
        for group in reader.groups(["text"]):
            tables = []
            for texts in slices(group.column("text")):
                scored = score_texts(texts, section, vocabulary, kernels_folder=work.cache / "numba")
                num_reference += scored.num_reference
                tables.append(as_table(texts, scored, section))
            table = pa.concat_tables(tables) if tables else schema(section).empty_table()
            writer.write(table)
            text_bytes += int(np.sum(table.column("text_bytes").to_numpy()))
            work.progress.update(writer.num_rows, reader.num_rows)
    if vocabulary is not None:
        _save(vocabulary, work.cache)
    info = {"backend": backend, "reference_documents": num_reference, "language_model": section.language_model}
    return Result(
        content=writer.content(),
        counts={"documents": writer.num_rows, "text_bytes": text_bytes},
        info=info,
        numerics={"backend": backend},
    )


def resolve_backend(section: ScoresSection) -> str:
    """Return memo or datatrove; `auto` takes the memo wherever it gives datatrove's words."""
    if section.backend != "auto":
        return section.backend
    return "memo" if words.covers(section.words) else "datatrove"


def schema(section: ScoresSection) -> pa.Schema:
    """Return the columns that a section leads to."""
    fields = [
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float32()),
        pa.field("characters", pa.int64(), nullable=False),
        pa.field("text_bytes", pa.int64(), nullable=False),
        pa.field("blank", pa.bool_(), nullable=False),
        pa.field("text_bytes_out", pa.int64(), nullable=False),
        pa.field("characters_out", pa.int64(), nullable=False),
        pa.field("blank_out", pa.bool_(), nullable=False),
    ]
    names = measures.names(section)
    fields += [pa.field(name, pa.int64() if name in measures.INTEGERS else pa.float64()) for name in names]
    fields += [pa.field(f"own.{one.name}", pa.float64()) for one in section.own]
    return pa.schema([*fields, pa.field("text", pa.large_string())])


def slices(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield a text column in pieces of about `SLICE_BYTES` bytes, at least one row each."""
    for chunk in column.chunks:
        texts = chunk.cast(pa.large_string())
        offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
        start = 0
        while start < len(texts):
            end = int(np.searchsorted(offsets, offsets[start] + SLICE_BYTES, side="right")) - 1
            end = min(max(end, start + 1), len(texts))
            yield texts.slice(start, end - start)
            start = end


def buffers(texts: pa.Array) -> tuple[Array, Array]:
    """Return bytes and offsets (from 0) of a large_string array without nulls, as writable arrays."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return np.zeros(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    part = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return part.copy(), offsets - offsets[0]


def score_texts(
    texts: pa.Array, section: ScoresSection, vocabulary: Vocabulary | None, *, kernels_folder: Path | None = None
) -> Scored:
    """Return scores of a large_string array; without a vocabulary, through datatrove alone."""
    buf, offsets = buffers(texts)
    labels, scores = language.identify(buf, offsets, kernels_folder=kernels_folder)
    if vocabulary is None:
        originals = texts.to_pylist()
        columns, finals = reference.measure(originals, section)
        joined: list[bytes | None] = [final.encode("utf-8") for final in finals]
        num_reference = len(originals)
    else:
        columns, joined, num_reference = _through_memo(texts, buf, offsets, section, vocabulary)
    bounds = offsets.tolist()
    whole = buf.tobytes()
    rewritten = [
        None if final is None or final == whole[a:b] else final
        for final, a, b in zip(joined, bounds, bounds[1:], strict=False)
    ]
    columns["language_score"] = scores
    if section.own:
        seen = [t if r is None else r.decode("utf-8") for t, r in zip(texts.to_pylist(), rewritten, strict=True)]
        for one in section.own:
            columns[f"own.{one.name}"] = own.score(seen, one)
    return Scored(columns=columns, languages=labels, rewritten=rewritten, num_reference=num_reference)


def _through_memo(
    texts: pa.Array, buf: Array, offsets: Array, section: ScoresSection, vocabulary: Vocabulary
) -> tuple[Columns, list[bytes | None], int]:
    vocabulary.make_room()
    current = vocabulary.encode(buf, offsets)
    odd = vocabulary.fragile(current)
    words = measures.word_counts(current, vocabulary)
    columns: Columns = {"words": words}
    joined: list[bytes | None] = [None] * len(texts)
    for rule in section.order:
        if rule == "gopher_repetition":
            columns |= measures.gopher_repetition(
                current, vocabulary, top_sizes=section.top_n_grams, dup_sizes=section.dup_n_grams
            )
        elif rule == "gopher_quality":
            columns |= measures.gopher_quality(current, vocabulary, stop_words=section.stop_words)
        elif rule == "fineweb_quality":
            columns |= measures.fineweb_quality(current, words, vocabulary, section)
        elif rule == "c4" and section.c4 is not None:
            lines = rewriting.c4(current, vocabulary, section.c4)
            columns |= {"c4_lorem_line": lines.lorem_line, "c4_curly_line": lines.curly_line}
            unstripped = _encode(lines.joined, vocabulary)
            columns["c4_sentences"] = _sentences(lines, unstripped, vocabulary)
            odd |= vocabulary.fragile(unstripped)
            final = [line.decode("utf-8").strip().encode("utf-8") for line in lines.joined]
            joined = list(final)
            current = unstripped if final == lines.joined else _encode(final, vocabulary)
            words = measures.word_counts(current, vocabulary)
        elif rule == "line_edits" and section.line_edits is not None:
            final = [rewriting.line_edits(text, section.line_edits).encode("utf-8") for text in texts.to_pylist()]
            joined, before = list(final), words
            current = _encode(final, vocabulary)
            odd |= vocabulary.fragile(current)
            words = measures.word_counts(current, vocabulary)
            columns["removed_words_ratio"] = measures.ratio(before - words, before)
    return columns, joined, _repair(texts, np.flatnonzero(odd), section, columns, joined)


def _sentences(lines: rewriting.Rewritten, unstripped: Encoded, vocabulary: Vocabulary) -> Array:
    counts = measures.sentences(unstripped, vocabulary)
    for row, kept in enumerate(lines.num_kept.tolist()):
        if kept == 0:
            counts[row] = 0
        elif not lines.joined[row] or lines.joined[row].endswith(b"\n"):
            counts[row] += 1  # an empty last line is a sentence to datatrove, and no line to `encode`
    return counts


def _encode(texts: list[bytes], vocabulary: Vocabulary) -> Encoded:
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return vocabulary.encode(np.frombuffer(bytearray(b"".join(texts)), np.uint8), offsets)


def _repair(texts: pa.Array, rows: Array, section: ScoresSection, columns: Columns, joined: list[bytes | None]) -> int:
    """Overwrite the scores of documents that spaCy sees otherwise than chunk by chunk."""
    if len(rows):
        exact, finals = reference.measure(texts.take(pa.array(rows)).to_pylist(), section)
        for name, values in exact.items():
            columns[name] = columns[name].copy()
            columns[name][rows] = values
        for row, final in zip(rows.tolist(), finals, strict=True):
            joined[row] = final.encode("utf-8")
    return len(rows)


def as_table(texts: pa.Array, scored: Scored, section: ScoresSection) -> pa.Table:
    """Return scored documents as rows of `scores.parquet`."""
    changed = pa.array(scored.rewritten, pa.large_binary()).cast(pa.large_string())
    columns = {
        "language": pa.array(scored.languages, pa.string()),
        "language_score": pa.array(scored.columns["language_score"], pa.float32()),
        "text": changed,
    }
    kernels = compiled.load("kernels")
    for part, suffix in ((texts, ""), (pc.coalesce(changed, texts), "_out")):
        buf, offsets = buffers(part)
        out = np.empty((len(part), 2), np.int64)
        kernels.extents(buf, offsets, out)
        columns[f"characters{suffix}"] = pa.array(out[:, 0])
        columns[f"text_bytes{suffix}"] = pa.array(np.diff(offsets))
        columns[f"blank{suffix}"] = pa.array(out[:, 1] == 0)
    for field in schema(section):
        if field.name not in columns:
            values = scored.columns[field.name]
            missing = np.isnan(values) if values.dtype.kind == "f" else values < 0
            columns[field.name] = pa.array(values, field.type, mask=missing)
    return pa.table([columns[field.name] for field in schema(section)], schema=schema(section))


# --- the vocabulary between units -------------------------------------------------------------------------------------


def cache_path(cache: Path, words: str) -> Path:
    """Return where the vocabulary of a language is kept between jobs."""
    return cache / "vocabulary" / f"{words}.npz"


@functools.lru_cache(maxsize=2)
def _shared(words: str, limit: int, cache: Path) -> Vocabulary:
    vocabulary = Vocabulary(words, limit=limit, kernels_folder=cache / "numba")
    vocabulary.load(cache_path(cache, words))
    return vocabulary


def _vocabulary(work: Work[ScoresSection]) -> Vocabulary:
    vocabulary = _shared(work.section.words, work.section.vocabulary_chunks, work.cache)
    vocabulary.asked = 0
    return vocabulary


def _save(vocabulary: Vocabulary, cache: Path) -> None:
    """Keep the vocabulary if it grew by a tenth. A cache that cannot be written costs time only."""
    if vocabulary.asked * 10 > vocabulary.num_chunks:
        try:
            vocabulary.save(cache_path(cache, vocabulary.language))
        except OSError:
            return
