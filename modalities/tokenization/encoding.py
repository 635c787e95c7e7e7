"""Text to ids: gigatoken where it is known to agree with `tokenizers`, and `tokenizers` where it is not.

gigatoken is 30 to 60 times as fast, and silently wrong for some tokenizers (reasons in `refusal`). So it is used only for an
allow-list of tokenizer.json features, and a share of every unit is encoded with `tokenizers` as well: one difference, and the
unit is written anew with `tokenizers`. Arrow goes in, flat numpy arrays come out, no Python object per token.

gigatoken's caches grow without bound (about 1 GB per 1.5 GB of new text), so it is made anew once memory has grown by
`MAX_GROWTH_BYTES`.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
import numpy as np
import psutil

from modalities.errors import InputError
from modalities.tokens import Array

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 8_000_000
MAX_GROWTH_BYTES = 512_000_000
REFERENCE, FAST = "tokenizers", "gigatoken"
_log = logging.getLogger(__name__)

Texts: TypeAlias = "pa.LargeStringArray | list[str]"
"""Texts without nulls, as they come: neither form is turned into the other, which would take a tenth of the whole time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """Ids of a batch of texts: flat, with int64 offsets (texts + 1)."""

    ids: Array
    offsets: Array


class Encoder(Protocol):
    """What both engines do."""

    name: str

    def encode(self, texts: Texts) -> Encoded:
        """Return the ids of texts without nulls; nothing is added to them."""


class MismatchError(Exception):
    """gigatoken gave other ids than `tokenizers`; caught by whoever can start again with the latter."""


class Reference:
    """`tokenizers`: what ids are measured against."""

    name = REFERENCE

    def __init__(self, file: Path, *, special_in_text: bool) -> None:
        self.tokenizer = load(file)
        self.tokenizer.encode_special_tokens = not special_in_text

    def encode(self, texts: Texts) -> Encoded:
        """See `Encoder`. A few hundred Python objects per text: this engine has no other way out."""
        strings = texts if isinstance(texts, list) else texts.to_pylist()
        encodings = self.tokenizer.encode_batch_fast(strings, add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.int64)
        ids = [np.array(e.ids, np.uint32) for e in encodings]
        np.cumsum([len(i) for i in ids], out=offsets[1:])
        return Encoded(np.concatenate(ids) if ids else np.empty(0, np.uint32), offsets)


class Fast:
    """gigatoken on the calling thread, made anew when its caches have grown."""

    name = FAST

    def __init__(self, file: Path, *, special_in_text: bool) -> None:
        spec = msgspec.json.decode(file.read_bytes())
        if (why := refusal(spec)) is not None:
            raise ValueError(f"not for gigatoken: {why}")
        spec |= {"truncation": None, "padding": None, "post_processor": None}
        if not special_in_text:
            # Without its entry a special token is text like any other, as with `encode_special_tokens` of `tokenizers`.
            spec["added_tokens"] = [token for token in spec["added_tokens"] if not token["special"]]
        self._spec = msgspec.json.encode(spec)
        self.num_recycled = -1
        self._recycle()

    def encode(self, texts: Texts) -> Encoded:
        """See `Encoder`."""
        if len(texts) == 0:
            return Encoded(np.empty(0, np.uint32), np.zeros(1, np.int64))
        layout = self._tokenizer.encode_batch(
            texts if isinstance(texts, list) else _awkward(texts), parallel=False
        ).layout
        offsets = np.asarray(layout.offsets.data, np.int64)
        if len(offsets) != len(texts) + 1:
            raise MismatchError(f"expected {len(texts)} documents back, got {len(offsets) - 1}")
        encoded = Encoded(np.asarray(layout.content.data)[offsets[0] : offsets[-1]], offsets - offsets[0])
        if _memory_bytes() > self._limit:
            del layout
            self._recycle()
        return encoded

    def _recycle(self) -> None:
        import gigatoken

        self._tokenizer: Any = None  # frees the caches before the next ones are made
        self._tokenizer = gigatoken.Tokenizer.from_json(self._spec)
        self._limit = _memory_bytes() + MAX_GROWTH_BYTES
        self.num_recycled += 1


def open_encoder(file: Path, *, special_in_text: bool, allow_fast: bool = True) -> tuple[Encoder, str | None]:
    """Return the fastest engine for a tokenizer.json, and why it is not gigatoken, if it is not."""
    why: str | None = "another unit found other ids"
    if allow_fast:
        try:
            return Fast(file, special_in_text=special_in_text), None
        except Exception as error:  # gigatoken raises several kinds for tokenizers that it does not know
            why = str(error).partition("\n")[0]
            _log.info("%s: encoding with tokenizers (%s)", file, why)
    return Reference(file, special_in_text=special_in_text), why


def refusal(spec: dict[str, Any]) -> str | None:
    """Return why gigatoken must not be used for a tokenizer.json, or None if it may be."""
    model, vocab = spec["model"], spec["model"].get("vocab", {})
    if model.get("type") != "BPE":
        return f"model {model.get('type')}"
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            return name
    for token in spec["added_tokens"]:
        if token["single_word"] or token["lstrip"] or token["rstrip"]:
            return f"added token {token['content']!r} takes part of its surroundings"
        if vocab.get(token["content"], token["id"]) != token["id"]:
            return f"added token {token['content']!r} has another id in the vocabulary"
    if not _known_pipeline(spec.get("normalizer"), spec.get("pre_tokenizer"), bool(model.get("byte_fallback"))):
        return "a normalizer or pre-tokenizer that is not on the list"
    return None


def _known_pipeline(normalizer: Any, pre_tokenizer: Any, byte_fallback: bool) -> bool:
    normal, before = _steps(normalizer, "normalizers"), _steps(pre_tokenizer, "pretokenizers")
    kinds = [step["type"] for step in before]
    if byte_fallback:  # SentencePiece: spaces become U+2581, nothing else is changed
        return {s["type"] for s in normal} <= {"Prepend", "Replace"} and set(kinds) <= {"Metaspace", "Split"}
    if normal or not before or before[-1]["type"] != "ByteLevel" or before[-1]["add_prefix_space"]:
        return False
    if before[-1].get("use_regex", True):
        return len(before) == 1
    splits = before[:-1]
    return bool(splits) and all(
        s["type"] == "Split" and s["behavior"] == "Isolated" and not s["invert"] for s in splits
    )


def _steps(part: Any, name: str) -> list[Any]:
    if part is None:
        return []
    return list(part[name]) if part["type"] == "Sequence" else [part]


def load(file: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json without truncation and padding."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{file}: expected a tokenizer.json, got {error}; export it from Hugging Face again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def num_ids(tokenizer: Any) -> int:
    """Return one more than the largest id, added tokens included."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def file_hash(file: Path) -> str:
    """Return the SHA-256 of a file, which is how shards name their tokenizer."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def batches(texts: "pa.LargeStringArray", *, size: int = BATCH_BYTES) -> "Iterator[pa.LargeStringArray]":
    """Yield slices of about `size` bytes of text, at least one row each."""
    ends = _offsets(texts)
    first = 0
    while first < len(texts):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + size, side="right")) - 1)
        yield texts.slice(first, last - first)
        first = last


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Ids around each document."""

    before: int | None
    after: int


def surround(encoded: Encoded, bounds: Bounds, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return flat ids with begin and end of each document, in the shard's type, and the lengths.

    One copy per document: about 1 ns per token for documents of 500 tokens, half of what indexed assignment takes.
    """
    extra = 1 if bounds.before is None else 2
    lengths = np.diff(encoded.offsets) + extra
    out = np.empty(len(encoded.ids) + extra * len(lengths), dtype)
    ids, start, place = encoded.ids, 0, 0
    for end in encoded.offsets[1:].tolist():
        if bounds.before is not None:
            out[place] = bounds.before
            place += 1
        stop = place + end - start
        out[place:stop] = ids[start:end]
        out[stop] = bounds.after
        start, place = end, stop + 1
    return out, lengths


class Verifier:
    """Encode a sample with `tokenizers` as well; raise `MismatchError` at the first difference.

    The sample depends on row numbers alone. The first document of a unit is always in it, unless the share is 0.
    """

    def __init__(self, open_reference: Callable[[], Reference], *, share: float) -> None:
        self._open = open_reference
        self._share = share
        self._reference: Reference | None = None
        self.num_documents = 0

    def check(self, texts: Texts, encoded: Encoded, *, first: int) -> None:
        """Compare a batch whose first document is number `first` of its unit."""
        if self._share == 0 or len(texts) == 0:
            return
        chosen = np.random.default_rng(first).random(len(texts)) < self._share
        chosen[0] |= first == 0
        picked = np.flatnonzero(chosen).tolist()
        if not picked:
            return
        if self._reference is None:
            self._reference = self._open()
        expected = self._reference.encode([str(texts[index]) for index in picked])
        for n, index in enumerate(picked):
            ours = encoded.ids[encoded.offsets[index] : encoded.offsets[index + 1]]
            if not np.array_equal(ours, expected.ids[expected.offsets[n] : expected.offsets[n + 1]]):
                raise MismatchError(
                    f"document {first + index} of the unit has other ids with {FAST} than with {REFERENCE}"
                )
        self.num_documents += len(picked)


def text_bytes(texts: "pa.LargeStringArray") -> Array:
    """Return the size of each text, int64. `pyarrow.compute` would import pandas to look at its arguments."""
    return np.diff(_offsets(texts))


def _offsets(texts: "pa.LargeStringArray") -> Array:
    return np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]


def _awkward(texts: "pa.LargeStringArray") -> Any:
    """Wrap an Arrow array as an awkward array of strings, without a copy."""
    import awkward as ak

    data = texts.buffers()[2]
    content = ak.contents.NumpyArray(
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8),
        parameters={"__array__": "char"},
    )
    return ak.Array(
        ak.contents.ListOffsetArray(ak.index.Index64(_offsets(texts)), content, parameters={"__array__": "string"})
    )


def _memory_bytes() -> int:
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))
