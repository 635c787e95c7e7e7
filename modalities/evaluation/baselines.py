"""Two baselines on the held-out text, with the byte accounting of the models: `xz -9e`, and an interpolated token bigram.

xz: the texts of one source after another, compressed as one file with preset 9 extreme; it knows no training data.

Bigram: p(w | v) = a c(v w) / c(v) + b c(w) / N + c / V, over the training tokens of all sources. The weights (a, b, c) depend on
how often v was seen (in powers of two), and are fitted by expectation maximisation on every tenth chunk of the training tokens,
from the counts of the others; then these chunks are counted too. Counts are sparse: two sorted arrays, 16 bytes per different
pair. Of each source at most `tokens` tokens are read, from the front.

Writes `documents.parquet`: id, source, tokens, bits of the bigram, per held-out document.
"""

import dataclasses
import lzma
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from modalities.documents import GROUP_ROWS, GroupWriter
from modalities.errors import InputError
from modalities.evaluation.config import BaselinesSection
from modalities.evaluation.texts import Document, Score, breakdown, open_tokenizer, read_documents, sources_of
from modalities.tokens import Shard
from modalities.work import Result, Upstream, Work, digest_of

Array = np.ndarray[Any, np.dtype[Any]]
SCHEMA = 1
SHARD = "tokens"
FITTED_EVERY = 10
CHUNK = 1 << 20
ITERATIONS = 30
DOCUMENT_SCORES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
    ]
)


def run(work: Work[BaselinesSection]) -> Result:
    """Measure both baselines. Inputs: heldout, tokenizer, tokenization:<source> with units."""
    documents = list(read_documents(work.inputs["heldout"], per_source=work.section.documents))
    if not documents:
        raise InputError(f"{work.label}: expected held-out documents, got none; raise the held-out share")
    tokenizer = open_tokenizer(work.inputs["tokenizer"])
    work.progress.update(0, 3, unit="steps", what="xz")
    xz = {source: compressed_bits(own) for source, own in sources_of(documents).items()}
    work.progress.update(1, 3, unit="steps", what="counting bigrams")
    sources = [up for role, up in sorted(work.inputs.items()) if role.startswith("tokenization:")]
    bigram = fit_bigram(training_chunks(sources, work.section.tokens), num_ids=tokenizer.num_ids)
    work.progress.update(2, 3, unit="steps", what="scoring")
    rows = tokenizer.encode([document.text for document in documents])
    scores = [
        Score(document=document, num_tokens=len(ids), bits=bigram.bits(np.concatenate(([tokenizer.boundary], ids))))
        for document, ids in zip(documents, rows, strict=True)
    ]
    return _write(work, scores, xz, bigram)


def compressed_bits(documents: Sequence[Document]) -> dict[str, Any]:
    """Return the size of the texts under `xz -9e`, container included."""
    packer = lzma.LZMACompressor(format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=9 | lzma.PRESET_EXTREME)
    size = sum(len(packer.compress(document.text.encode("utf-8"))) for document in documents) + len(packer.flush())
    num_bytes = sum(document.num_bytes for document in documents)
    return {
        "documents": len(documents),
        "bytes": num_bytes,
        "bits": 8.0 * size,
        "bits_per_byte": 8.0 * size / num_bytes if num_bytes > 0 else None,
    }


def training_chunks(sources: Sequence[Upstream], tokens_per_source: int) -> Iterator[Array]:
    """Yield training tokens as int64; a chunk begins with the last token of the one before in its shard.

    Chunks have up to `CHUNK` tokens, and fewer where there would not be enough of them to hold some back.
    """
    shards = [[Shard(unit.folder / SHARD).tokens for unit in source.units] for source in sources]
    total = sum(min(tokens_per_source, sum(map(len, own))) for own in shards)
    size = min(CHUNK, max(1, total // (2 * FITTED_EVERY)))
    for own in shards:
        left = tokens_per_source
        for tokens in own:
            for start in range(0, min(len(tokens), left), size):
                chunk: Array = np.asarray(tokens[max(0, start - 1) : min(start + size, left)], np.int64)
                yield chunk
            left -= min(len(tokens), left)


# --- bigram ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Sparse counts: pairs v * V + w in ascending order, and how often each was seen; single tokens dense."""

    num_ids: int
    pairs: Array
    pair_counts: Array
    contexts: Array
    tokens: Array

    def probabilities(self, before: Array, after: Array) -> Array:
        """Return p2, p1 and p0 of each pair, shape (3, n)."""
        wanted = before * self.num_ids + after
        place = np.minimum(np.searchsorted(self.pairs, wanted), max(0, len(self.pairs) - 1))
        seen = self.pair_counts[place] * (self.pairs[place] == wanted) if len(self.pairs) else np.zeros(len(wanted))
        total = self.tokens.sum()
        return np.stack(
            [
                seen / np.maximum(1, self.contexts[before]),
                self.tokens[after] / max(1, total),
                np.full(len(wanted), 1 / self.num_ids),
            ]
        )

    def classes(self, before: Array) -> Array:
        """Return the class of each context by how often it was seen: 0 never, n below 2^n times."""
        found: Array = np.ceil(np.log2(self.contexts[before] + 1)).astype(np.int64)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Bigram:
    """Counts and the weights (classes, 3) of bigram, unigram and uniform distribution."""

    counts: Counts
    weights: Array

    def bits(self, row: Array) -> float:
        """Return the bits of all tokens of a row but the first."""
        before, after = row[:-1], row[1:]
        if len(after) == 0:
            return 0.0
        parts = self.counts.probabilities(before, after)
        mixed = (self.weights[self.counts.classes(before)].T * parts).sum(axis=0)
        return float(-np.log2(mixed).sum())


def fit_bigram(chunks: Iterator[Array], *, num_ids: int) -> Bigram:
    """Count and fit; without training tokens, the uniform distribution."""
    counts, held = _empty(num_ids), _empty(num_ids)
    for number, chunk in enumerate(chunks):
        if number % FITTED_EVERY == FITTED_EVERY - 1:
            held = _add(held, chunk)
        else:
            counts = _add(counts, chunk)
    weights = _fit_weights(counts, held)
    return Bigram(_merge(counts, held), weights)


def _empty(num_ids: int) -> Counts:
    none = np.empty(0, np.int64)
    return Counts(num_ids, none, none, np.zeros(num_ids, np.int64), np.zeros(num_ids, np.int64))


def _add(counts: Counts, chunk: Array) -> Counts:
    before, after, num_ids = chunk[:-1], chunk[1:], counts.num_ids
    pairs, pair_counts = np.unique(before * num_ids + after, return_counts=True)
    return _merge(
        counts,
        Counts(
            num_ids,
            pairs,
            pair_counts,
            np.bincount(before, minlength=num_ids),
            np.bincount(after, minlength=num_ids),
        ),
    )


def _merge(left: Counts, right: Counts) -> Counts:
    pairs = np.concatenate((left.pairs, right.pairs))
    order = np.argsort(pairs, kind="stable")
    pairs, counts = pairs[order], np.concatenate((left.pair_counts, right.pair_counts))[order]
    starts = np.flatnonzero(np.diff(pairs, prepend=-1))
    return Counts(
        left.num_ids,
        pairs[starts],
        np.add.reduceat(counts, starts) if len(starts) else counts,
        left.contexts + right.contexts,
        left.tokens + right.tokens,
    )


def _fit_weights(counts: Counts, held: Counts) -> Array:
    """Maximise the likelihood of the held-back pairs; a class without any takes the weights of the nearest below."""
    before, after = np.divmod(held.pairs, counts.num_ids)
    parts, classes = counts.probabilities(before, after), counts.classes(before)
    weights = np.full((65, 3), 1 / 3)
    weights[0] = (0, 0.9, 0.1) if counts.tokens.sum() > 0 else (0, 0, 1)
    if len(before) == 0:
        weights[1:] = (0.6, 0.39, 0.01) if counts.tokens.sum() > 0 else weights[0]
        return weights
    for _ in range(ITERATIONS):
        shares = weights[classes].T * parts
        shares *= held.pair_counts / shares.sum(axis=0)
        sums = np.stack([np.bincount(classes, share, minlength=len(weights)) for share in shares], axis=1)
        seen = sums.sum(axis=1) > 0
        weights[seen] = (sums[seen] + 1e-3) / (sums[seen] + 1e-3).sum(axis=1, keepdims=True)
    last = 0
    for number in range(len(weights)):
        last = number if seen[number] else last
        weights[number] = weights[last]
    return weights


def _write(work: Work[BaselinesSection], scores: list[Score], xz: dict[str, Any], bigram: Bigram) -> Result:
    with GroupWriter(work.folder / "documents.parquet", DOCUMENT_SCORES) as writer:
        for start in range(0, len(scores), GROUP_ROWS):
            part = scores[start : start + GROUP_ROWS]
            columns: dict[str, list[Any]] = {
                "id": [score.document.id for score in part],
                "source": [score.document.source for score in part],
                "tokens": [score.num_tokens for score in part],
                "bits": [score.bits for score in part],
            }
            writer.write(pa.table(columns, schema=DOCUMENT_SCORES))
        content = writer.content()
    figures = breakdown(scores)
    total = {name: sum(one[name] for one in xz.values()) for name in ("documents", "bytes", "bits")}
    total["bits_per_byte"] = total["bits"] / total["bytes"] if total["bytes"] > 0 else None
    return Result(
        content=digest_of(SCHEMA, content, xz),
        counts={name: figures[name] for name in ("documents", "bytes", "tokens")},
        info={
            "schema": SCHEMA,
            "baselines": {"xz": total | {"sources": xz}, "bigram": figures},
            "bigram": {
                "training_tokens": int(bigram.counts.tokens.sum()),
                "pairs": len(bigram.counts.pairs),
                "num_ids": bigram.counts.num_ids,
            },
        },
    )
