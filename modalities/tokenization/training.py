"""Train a byte-level BPE on a bounded, deterministic sample of the documents that are kept."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from modalities.documents import GroupReader, read_groups
from modalities.errors import InputError
from modalities.tokenization.config import SplitPattern, TrainingConfig
from modalities.work import Upstream

MAX_UNITS = 64
"""Units of a source that are looked at: bounds reading where there are thousands of files."""
MASKS = ("ingestion", "scores", "filtering", "deduplication")
UNKNOWN_LANGUAGE = "unknown"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
PATTERNS: dict[SplitPattern, str | None] = {
    "gpt2": None,  # what ByteLevel does by itself
    "cl100k": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Pre-tokenization by name: the public split patterns of GPT-2, GPT-4, Llama 3 and GPT-4o."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Some texts of one source, without nulls, and the language of each."""

    source: str
    texts: pa.LargeStringArray
    languages: pa.Array


def split_by(pattern: SplitPattern) -> Any:
    """Return the pre-tokenizer of a split pattern; bytes stand for themselves afterwards."""
    from tokenizers import Regex, pre_tokenizers

    regex = PATTERNS[pattern]
    if regex is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Split(Regex(regex), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(
    samples: Iterator[Sample], *, config: TrainingConfig, special_tokens: Sequence[str], split_pattern: SplitPattern
) -> Any:
    """Return a `tokenizers.Tokenizer`: special tokens first, then the 256 bytes, then merges.

    The same texts give the same tokenizer, whatever the number of threads.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_by(split_pattern)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    first = next(samples, None)
    if first is None:
        raise InputError("tokenization.train: expected text to train on, got none that is kept; loosen the filters")
    texts = (sample.texts.to_pylist() for sample in itertools.chain([first], samples))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_samples(inputs: Mapping[str, Upstream], *, sources: Sequence[str], config: TrainingConfig) -> Iterator[Sample]:
    """Yield texts of every source, at most `sample_bytes` in all, shared out by weight (or by kept text).

    Of each source up to `MAX_UNITS` units are read, in the order of a hash; of each row group the documents with the
    smallest hash of row number. What a unit or group does not use of its share goes to those that follow.
    """
    weights = dict(config.train_on) or {s: _kept_bytes(inputs, s) for s in sources}
    total = sum(weights[s] for s in sources)
    for source in sources:
        budget = int(config.sample_bytes * weights[source] / total) if total else 0
        units = _units(inputs, source)
        order = sorted(range(len(units)), key=functools.partial(_place, source))[:MAX_UNITS]
        for place, index in enumerate(order):
            share = budget // (len(order) - place)
            for sample in _read_unit(units[index], source, share):
                budget -= pc.sum(pc.binary_length(sample.texts)).as_py()
                yield sample


def _place(source: str, unit: int) -> int:
    return int(xxhash.xxh3_64_intdigest(f"{source}:{unit}"))


def _kept_bytes(inputs: Mapping[str, Upstream], source: str) -> int:
    """Return about how much text of a source is kept: its bytes times the share of documents that were not dropped."""
    counts = inputs[f"ingestion:{source}"].manifest.counts
    kept = inputs[f"deduplication:{source}"].manifest.counts.get("documents_out", 0)
    documents = counts.get("documents_out", kept)
    return counts.get("text_bytes", documents) * kept // documents if documents else 0


def _units(inputs: Mapping[str, Upstream], source: str) -> list[dict[str, Upstream]]:
    roles = [role for role in MASKS if f"{role}:{source}" in inputs]
    columns = [inputs[f"{role}:{source}"].units for role in roles]
    return [dict(zip(roles, units, strict=True)) for units in zip(*columns, strict=True)]


def _read_unit(unit: Mapping[str, Upstream], source: str, budget: int) -> Iterator[Sample]:
    num_groups = GroupReader(unit["ingestion"].folder / "documents.parquet").num_groups
    languages = _languages(unit)
    for group in read_groups(unit, masked=True):
        share = budget // (num_groups - group.index)
        rows = _pick(group.texts, group.first_row, share)
        if len(rows):
            texts = group.texts.take(pa.array(rows))
            budget -= pc.sum(pc.binary_length(texts)).as_py()
            language = next(languages).take(pa.array(rows))
            yield Sample(source=source, texts=texts, languages=language)
        else:
            next(languages)


def _pick(texts: pa.LargeStringArray, first_row: int, budget: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return, in order, rows whose text is kept, not empty and within the budget, smallest hash first."""
    sizes = pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.random.default_rng(first_row).permutation(len(sizes))
    order = order[sizes[order] > 0]
    return np.sort(order[np.cumsum(sizes[order]) <= budget])


def _languages(unit: Mapping[str, Upstream]) -> Iterator[pa.Array]:
    """Yield the language labels of each row group."""
    base = GroupReader(unit["ingestion"].folder / "documents.parquet")
    scores = GroupReader(unit["scores"].folder / "scores.parquet") if "scores" in unit else None
    for index in range(base.num_groups):
        if scores is not None and "language" in scores.columns:
            column = scores.group(index, ["language"]).column("language").combine_chunks()
            yield pc.fill_null(column.cast(pa.string()), UNKNOWN_LANGUAGE)
        else:
            yield pa.array([UNKNOWN_LANGUAGE] * base.group(index, ["id"]).num_rows)


def compression(
    samples: Iterator[Sample], encode: Any, *, limit_bytes: int = 8_000_000
) -> tuple[dict[str, dict[str, float]], int]:
    """Return bytes per token by source and language, `all` included, and the number of documents of the sample.

    At most about `limit_bytes` of each source are encoded.
    """
    sizes: dict[tuple[str, str], Any] = {}
    read: dict[str, int] = {}
    documents = 0
    for sample in samples:
        documents += len(sample.texts)
        if read.get(sample.source, 0) > limit_bytes:
            continue
        size = pc.binary_length(sample.texts).to_numpy(zero_copy_only=False)
        tokens = np.diff(encode(sample.texts).offsets)
        read[sample.source] = read.get(sample.source, 0) + int(size.sum())
        labels = np.array(sample.languages.to_pylist())
        for language in ["all", *np.unique(labels).tolist()]:
            rows = slice(None) if language == "all" else labels == language
            total = sizes.setdefault((sample.source, language), np.zeros(2, np.int64))
            total += (int(size[rows].sum()), int(tokens[rows].sum()))
    table: dict[str, dict[str, float]] = {}
    for (source, language), (size, tokens) in sorted(sizes.items()):
        table.setdefault(source, {})[language] = round(int(size) / max(1, int(tokens)), 4)
    return table, documents
