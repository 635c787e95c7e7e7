"""The vocabulary memo: what spaCy says of a chunk of text between blanks, asked once per distinct chunk.

spaCy splits text at white space first and each chunk by itself, so that a document's words are its chunks' words in order. The
one exception is its last pass, which may join or split words by special cases found anywhere in the text: chunks in which it
does so are `fragile`, and their documents go to the reference instead.

Cost: 25-30 us for a chunk that was never seen (half of what asking spaCy costs), 0.2 us for one that was. `limit` bounds the
number of chunks.
"""

import dataclasses
import functools
import io
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from modalities.filtering import compiled
from modalities.filtering.words import Words

Array = np.ndarray[Any, np.dtype[Any]]
ATTRIBUTES = ("words", "quality_words", "quality_characters", "alpha_words", "hashes", "ellipses")
BULLET, ELLIPSIS_END, FRAGILE, ODD = 1, 2, 4, 8
"""Flags of chunks. Odd: holds the one word that makes spaCy fail, after which datatrove cuts it out of the text."""
FORMAT = 1
_STEP = 4000
_WINDOW = 8
_PLAIN = re.compile(r'[("]?[^\W_]+[,;:.)"]?')
"""Chunks that need no look at their signs."""
_ASCII_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Growing:
    """A numpy array that grows by appending."""

    def __init__(self, dtype: Any, width: int | None = None) -> None:
        self._data = np.zeros((1024,) if width is None else (1024, width), dtype)
        self.size = 0

    def extend(self, values: Any) -> None:
        """Append values."""
        values = np.asarray(values, self._data.dtype)
        need = self.size + len(values)
        if need > len(self._data):
            bigger = np.zeros((max(need, 2 * len(self._data)), *self._data.shape[1:]), self._data.dtype)
            bigger[: self.size] = self._data[: self.size]
            self._data = bigger
        self._data[self.size : need] = values
        self.size = need

    @property
    def values(self) -> Array:
        """What was appended, without copying."""
        return self._data[: self.size]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Documents as ids of chunks. Positions are of chunks and lines in the whole slice."""

    buf: Array
    offsets: Array
    characters: Array
    chunks: Array
    gaps: Array
    lines: Array
    line_spans: Array
    tails: Array
    doc_lines: Array

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.offsets) - 1

    @property
    def doc_chunks(self) -> Array:
        """First chunk of each document, and the end."""
        return self.lines[self.doc_lines]


class Vocabulary:
    """Everything known of the chunks of one language."""

    def __init__(self, language: str, *, limit: int, kernels_folder: Path | None = None) -> None:
        self.language = language
        self.limit = limit
        self.kernels = compiled.load("kernels", kernels_folder)
        self.asked = 0
        """Chunks that spaCy was asked about."""
        self._stop_list: tuple[str, ...] | None = None
        self._clear()

    @functools.cached_property
    def words(self) -> Words:
        """spaCy; loaded with the first chunk that is new."""
        return Words(self.language)

    def _clear(self) -> None:
        self._stop_index: Array = np.zeros(0, np.int32)
        self.keys, self.ids = np.zeros(1 << 16, np.uint64), np.full(1 << 16, -1, np.int32)
        self._blob, self._blob_offsets = Growing(np.uint8), Growing(np.int64)
        self._attributes, self._flags, self._lengths = Growing(np.int32, 6), Growing(np.uint8), Growing(np.int32)
        self._token_offsets, self._chunk_tokens = Growing(np.int64), Growing(np.int32)
        self._token_ids: dict[str, int] = {}
        self._windows: dict[str, bool] = {}
        self._token_length, self._token_class = Growing(np.int32), Growing(np.uint8)
        self._token_hash, self._token_power = Growing(np.uint64), Growing(np.uint64)
        self._token_attributes = Growing(np.int32, 4)
        self._blob_offsets.extend([0])
        self._token_offsets.extend([0])
        self._stop_list = None

    @property
    def num_chunks(self) -> int:
        """Distinct chunks that are known."""
        return self._blob_offsets.size - 1

    attributes = property(lambda self: self._attributes.values)
    flags = property(lambda self: self._flags.values)
    lengths = property(lambda self: self._lengths.values)
    token_offsets = property(lambda self: self._token_offsets.values)
    chunk_tokens = property(lambda self: self._chunk_tokens.values)
    token_length = property(lambda self: self._token_length.values)
    token_class = property(lambda self: self._token_class.values)
    token_hash = property(lambda self: self._token_hash.values)
    token_power = property(lambda self: self._token_power.values)

    def encode(self, buf: Array, offsets: Array) -> Encoded:
        """Return documents as ids of chunks; asks spaCy about new ones. `buf` and `offsets` as in an Arrow string array.

        Ids hold until the next `make_room`.
        """
        size, documents = int(offsets[-1] - offsets[0]), len(offsets) - 1
        chunks, gaps = np.empty(size // 2 + documents + 1, np.int32), np.empty(size // 2 + documents + 1, np.uint8)
        lines, spans = np.empty(size + documents + 1, np.int32), np.empty((size + documents + 1, 4), np.int64)
        tails, doc_lines = np.empty(size + documents + 1, np.uint8), np.empty(documents + 1, np.int64)
        new = np.empty((size // 2 + documents + 1, 2), np.int64)
        self.keys, self.ids, num_chunks, num_lines, num_new = self.kernels.encode(
            buf, offsets, self._blob.values, self._blob_offsets.values, self.keys, self.ids,
            chunks, gaps, lines, spans, tails, doc_lines, new,
        )  # fmt: skip
        whole = buf.tobytes() if num_new else b""
        for start in range(0, num_new, _STEP):
            self._learn([whole[a:b] for a, b in new[start : min(start + _STEP, num_new)].tolist()])
        characters = np.empty(documents, np.int64)
        self.kernels.count_characters(buf, offsets, characters)
        return Encoded(
            buf=buf,
            offsets=offsets,
            characters=characters,
            chunks=chunks[:num_chunks],
            gaps=gaps[:num_chunks],
            lines=lines[: num_lines + 1],
            line_spans=spans[:num_lines],
            tails=tails[:num_lines],
            doc_lines=doc_lines,
        )

    def tokens(self, encoded: Encoded) -> tuple[Array, Array]:
        """Return the token ids of all documents, and where each document begins and ends."""
        bounds = np.empty(encoded.num_documents + 1, np.int64)
        tokens = np.empty(self.kernels.count_tokens(encoded.chunks, self.token_offsets), np.int32)
        self.kernels.expand(encoded.chunks, encoded.doc_chunks, self.token_offsets, self.chunk_tokens, tokens, bounds)
        return tokens, bounds

    def fragile(self, encoded: Encoded) -> Array:
        """Return which documents spaCy may split otherwise than their chunks.

        A fragile chunk is asked about again between its neighbours: special cases have at most six words.
        """
        out = np.zeros(encoded.num_documents, np.bool_)
        bounds = encoded.doc_chunks
        odd = np.flatnonzero(self.flags[encoded.chunks] & ODD)
        out[np.searchsorted(bounds, odd, side="right") - 1] = True
        hits = np.flatnonzero(self.flags[encoded.chunks] & FRAGILE)
        if not len(hits):
            return out
        documents = np.searchsorted(bounds, hits, side="right") - 1
        windows, expected = [], []
        for hit, document in zip(hits.tolist(), documents.tolist(), strict=True):
            ids = encoded.chunks[
                max(hit - _WINDOW, int(bounds[document])) : min(hit + _WINDOW + 1, int(bounds[document + 1]))
            ]
            windows.append(" ".join(self._chunk(chunk) for chunk in ids.tolist()))
            expected.append(
                [t for c in ids.tolist() for t in self.chunk_tokens[self.token_offsets[c] : self.token_offsets[c + 1]]]
            )
        new = [i for i, window in enumerate(windows) if window not in self._windows]
        if new:
            for i, words in zip(new, self.words.split([windows[i] for i in new])[0], strict=True):
                self._windows[windows[i]] = [self._token_ids.get(word) for word in words] != expected[i]
        for document, window in zip(documents.tolist(), windows, strict=True):
            out[document] |= self._windows[window]
        return out

    def _chunk(self, index: int) -> str:
        start, end = self._blob_offsets.values[index : index + 2].tolist()
        return self._blob.values[start:end].tobytes().decode("utf-8")

    def stop_index(self, stop_words: tuple[str, ...]) -> Array:
        """Return per token its place in `stop_words`, or -1."""
        if self._stop_list != stop_words or len(self._stop_index) != len(self._token_ids):
            self._stop_list = stop_words
            self._stop_index = np.full(len(self._token_ids), -1, np.int32)
            for place, word in enumerate(stop_words):
                if word in self._token_ids:
                    self._stop_index[self._token_ids[word]] = place
        return self._stop_index

    def make_room(self) -> None:
        """Forget everything if more chunks are known than the limit allows. Ids of earlier `Encoded` are void then."""
        if self.num_chunks > self.limit or len(self._windows) > self.limit:
            self._clear()

    def _learn(self, raw: list[bytes]) -> None:
        """Append chunks; in the order of their ids."""
        self.asked += len(raw)
        chunks = b"\n".join(raw).decode("utf-8").split("\n")
        parts, fragile = self.words.split(chunks)
        self._learn_tokens([word for words in parts for word in words])
        flat = np.array([self._token_ids[word] for words in parts for word in words], np.int32)
        bounds = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=bounds[1:])
        sums = np.zeros((len(flat) + 1, 4), np.int64)
        np.cumsum(self._token_attributes.values[flat], axis=0, out=sums[1:])
        attributes = np.zeros((len(chunks), 6), np.int32)
        attributes[:, :4] = sums[bounds[1:]] - sums[bounds[:-1]]
        flags = FRAGILE * np.array(fragile, np.uint8)
        for i, chunk in enumerate(chunks):
            if _PLAIN.fullmatch(chunk):
                continue
            attributes[i, 4] = chunk.count("#")
            attributes[i, 5] = chunk.count("...") + chunk.count("\u2026")
            flags[i] |= ELLIPSIS_END * chunk.endswith(("...", "\u2026"))
            flags[i] |= BULLET * (chunk[0] in "\u2022-") | ODD * ("IS_ALPHA" in chunk)
        lengths = [len(chunk) for chunk in chunks]
        self._append(raw, lengths=lengths, attributes=attributes, flags=flags, bounds=bounds, tokens=flat)

    def _append(
        self, raw: list[bytes], *, lengths: list[int], attributes: Array, flags: Array, bounds: Array, tokens: Array
    ) -> None:
        self._blob.extend(np.frombuffer(b"".join(raw), np.uint8))
        self._blob_offsets.extend(np.cumsum([len(chunk) for chunk in raw]) + self._blob_offsets.values[-1])
        self._lengths.extend(lengths)
        self._attributes.extend(attributes)
        self._flags.extend(flags)
        self._token_offsets.extend(bounds[1:] + self._chunk_tokens.size)
        self._chunk_tokens.extend(tokens)

    def _learn_tokens(self, words: list[str]) -> None:
        """Append the words that are new, in order."""
        from datatrove.utils.text import PUNCTUATION_SET

        new = [word for word in dict.fromkeys(words) if word not in self._token_ids]
        self._token_ids.update(zip(new, range(len(self._token_ids), len(self._token_ids) + len(new)), strict=True))
        lengths = np.array([len(word) for word in new], np.int64)
        codes = np.empty((2, len(new)), np.uint64)
        letters = np.frombuffer(bytearray("".join(new).encode("utf-32-le", "surrogatepass")), np.uint32)
        self.kernels.letter_codes(letters, lengths, codes)
        marks, is_punct = self.words.punctuation_marks, self.words.is_punct
        alpha = np.array([word.isalpha() or any(map(str.isalpha, word)) for word in new], np.bool_)
        symbol = np.array([c not in _ASCII_LETTERS and PUNCTUATION_SET.issuperset(w) for w in new for c in w[:1]], bool)
        classes = [
            1 if word in marks else 2 if letter or not is_punct(word) else 0
            for word, letter in zip(new, alpha.tolist(), strict=True)
        ]
        self._token_length.extend(lengths)
        self._token_hash.extend(codes[0])
        self._token_power.extend(codes[1])
        self._token_class.extend(classes)
        self._token_attributes.extend(np.stack([np.ones(len(new)), ~symbol, ~symbol * lengths, alpha], axis=1))

    # --- the cache on disk: in no digest, may vanish ------------------------------------------------------------------

    def signature(self) -> str:
        """Return what a cache file must agree on to be used."""
        from importlib import metadata

        return f"{FORMAT} {self.language} spacy {metadata.version('spacy')} datatrove {metadata.version('datatrove')}"

    def save(self, path: Path) -> None:
        """Write what is known through a partial file and a rename."""
        words = "\n".join(self._token_ids).encode("utf-8", "surrogatepass")
        arrays = {name: getattr(self, name).values for name in _SAVED} | {"words": np.frombuffer(words, np.uint8)}
        packed = io.BytesIO()
        np.savez(packed, **arrays)
        data = packed.getvalue()
        head = f"{self.signature()} {xxhash.xxh3_128_hexdigest(data)}\n".encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_bytes(head + data)
        partial.replace(path)

    def load(self, path: Path) -> bool:
        """Take over a cache file; return False, and stay as it is, if there is none or it is not whole."""
        try:
            head, _, data = path.read_bytes().partition(b"\n")
        except OSError:
            return False
        if head.decode("utf-8", "replace") != f"{self.signature()} {xxhash.xxh3_128_hexdigest(data)}":
            return False
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                loaded = {name: arrays[name] for name in (*_SAVED, "words")}
        except (ValueError, KeyError, OSError, zipfile.BadZipFile):
            return False
        self._clear()
        for name in _SAVED:
            column: Growing = getattr(self, name)
            column.size = 0
            column.extend(loaded[name])
        words = loaded["words"].tobytes().decode("utf-8", "surrogatepass").split("\n")
        self._token_ids = {word: index for index, word in enumerate(words) if word}
        self.keys, self.ids = self.kernels.rebuild(self._blob.values, self._blob_offsets.values)
        return True


_SAVED = (
    "_blob", "_blob_offsets", "_attributes", "_flags", "_lengths", "_token_offsets", "_chunk_tokens",
    "_token_length", "_token_class", "_token_hash", "_token_power", "_token_attributes",
)  # fmt: skip
