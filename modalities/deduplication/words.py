"""Words of texts as datatrove counts them for deduplication: `simplify_text`, then the language's word tokenizer.

Both steps are local to white-space chunks for every language that spaCy splits by rules. So each distinct chunk is
simplified and split once, and a document is a list of chunk ids (`ChunkMemo`). A piece of a chunk goes to spaCy only if
one of its affix patterns or exceptions touches it; the rest is one word by the definition of spaCy's algorithm. Known
chunks pass at about 100 MB/s of text per core, new ones cost some 10 us each.

Languages with another tokenizer (Chinese, Japanese, Korean, Thai, ...) go through datatrove document by document.
"""

import dataclasses
import importlib.metadata
import itertools
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modalities.deduplication import kernels
from modalities.deduplication.kernels import I32, I64, U8, U64
from modalities.errors import InputError

BATCH_BYTES = 4_000_000
MAX_CHUNKS = 1_000_000
"""The memo starts anew when it holds more: about 150 MB, most of it the table of pieces."""
MAX_BLOB_BYTES = 64_000_000
_SPACY_AT_ONCE = 4000


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """The words of some documents.

    data: all words, each followed by one blank; starts: (W + 1,) where each starts, then the end; ends: (D,) number of
    words in documents 0 to d.
    """

    data: U8
    starts: I64
    ends: I64


class Splitter(Protocol):
    """Turns texts into words."""

    name: str
    """What splits, for the record: `memo:en` or `datatrove:ja`."""

    def split(self, texts: pa.Array) -> Words:
        """Return the words of a large_string array; null counts as empty."""
        ...


def splitter(language: str | None, *, cache: Path | None = None) -> Splitter:
    """Return the splitter for a language code such as en, deu or deu_Latn; None: any language that writes blanks.

    With `cache`, a folder, the memo starts with the chunks of earlier runs; `ChunkMemo.save` keeps them there.
    """
    from datatrove.utils.word_tokenizers import SpaCyTokenizer, WhitespaceTokenizer, load_word_tokenizer

    try:
        reference: Any = WhitespaceTokenizer() if language is None else load_word_tokenizer(language)
    except ValueError:
        raise InputError(
            f"language: expected a language that datatrove has a word tokenizer for, got {language!r}; "
            f"use an ISO 639 code such as de, deu or deu_Latn, or none"
        ) from None
    code = reference.language if isinstance(reference, SpaCyTokenizer) else None
    if type(reference) is WhitespaceTokenizer:
        code = "xx"
    if code is not None and (tokenizer := _rule_tokenizer(code)) is not None:
        return ChunkMemo(code, tokenizer, cache=cache)
    return _Reference(language or "", reference)


def _rule_tokenizer(code: str) -> Any:
    """Return spaCy's tokenizer of a language, or None if it does not split white-space chunks one by one."""
    import spacy
    from spacy.tokenizer import Tokenizer  # type: ignore[import-not-found]

    if code in ("zh", "ja", "ko", "th", "vi"):  # some cannot be made without extra packages
        return None
    tokenizer: Any = spacy.blank(code).tokenizer
    if type(tokenizer) is not Tokenizer:
        return None
    tokenizer.vocab.lex_attr_getters.clear()  # attributes of words are not asked for, and cost half of a new word
    return tokenizer


@dataclasses.dataclass
class _Reference:
    """datatrove's own tokenizer, document by document."""

    name: str
    reference: Any

    def __init__(self, language: str, reference: Any) -> None:
        self.name = f"datatrove:{language}"
        self.reference = reference

    def split(self, texts: pa.Array) -> Words:
        """Return the words of texts."""
        from datatrove.utils.text import simplify_text

        spelled: list[bytes] = []
        ends: list[int] = []
        for text in texts.to_pylist():
            spelled += [word.encode() + b" " for word in self.reference.word_tokenize(simplify_text(text or ""))]
            ends.append(len(spelled))
        starts = np.zeros(len(spelled) + 1, np.int64)
        np.cumsum([len(word) for word in spelled], out=starts[1:])
        data = np.frombuffer(b"".join(spelled), np.uint8)
        return Words(data=data, starts=starts, ends=np.array(ends, np.int64))


class ChunkMemo:
    """Distinct white-space chunks and their words. Equal to datatrove wherever a rule of spaCy spans no blank."""

    _known: int
    """Number of chunks. Chunk i is `_blob[_bounds[i]:_bounds[i + 1]]`, its words `_words[_word_bounds[i]:...]`."""
    _blob: U8
    _bounds: I64
    _words: U8
    _word_bounds: I64
    _hashes: U64
    _slots: I32

    def __init__(self, code: str, tokenizer: Any, *, cache: Path | None = None) -> None:
        self.name = f"memo:{code}"
        self._words_of = _Pieces(tokenizer)
        versions = [importlib.metadata.version(name) for name in ("datatrove", "spacy")]
        self._path = None if cache is None else cache / f"words-1-{code}-{'-'.join(versions)}.npz"
        self._clear()
        self._load()

    def __len__(self) -> int:
        return self._known

    def split(self, texts: pa.Array) -> Words:
        """Return the words of texts."""
        data, offsets = text_bytes(texts)
        chunks, ends = self._intern(data, offsets)
        lengths = np.diff(self._word_bounds[: self._known + 1])
        size = int(lengths[chunks].sum())
        spelled, starts = np.empty(size, np.uint8), np.empty(size // 2 + 1, np.int64)
        word_ends = np.empty(len(texts), np.int64)
        bounds, words = self._word_bounds, self._words
        count = kernels.spell(chunks, ends, words, bounds, spelled, starts, word_ends)
        if self._known > MAX_CHUNKS or int(self._bounds[self._known]) > MAX_BLOB_BYTES:
            self._clear()
        return Words(data=spelled, starts=starts[: count + 1], ends=word_ends)

    def save(self) -> None:
        """Keep the chunks for later runs, if there are notably more than were read."""
        if self._path is None or self._known < 1.1 * self._loaded + 100:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
        with partial.open("wb") as file:
            arrays: dict[str, Any] = self._arrays()
            np.savez(file, **arrays)
        partial.replace(self._path)

    def _load(self) -> None:
        if self._path is None or not self._path.is_file():
            return
        try:
            with np.load(self._path, allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return  # a cache that cannot be read (its checksums are the archive's) is as good as none
        self._blob, self._bounds, self._hashes = arrays["blob"], arrays["bounds"], arrays["hashes"]
        self._words, self._word_bounds = arrays["words"], arrays["word_bounds"]
        self._known = self._loaded = self._learned = len(self._hashes)
        self._rehash(4 * self._known)

    def _arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        known = self._known
        return {
            "blob": self._blob[: self._bounds[known]],
            "bounds": self._bounds[: known + 1],
            "hashes": self._hashes[:known],
            "words": self._words[: self._word_bounds[known]],
            "word_bounds": self._word_bounds[: known + 1],
        }

    def _clear(self) -> None:
        self._known = self._loaded = 0
        self._blob, self._words = np.empty(1 << 16, np.uint8), np.empty(1 << 16, np.uint8)
        self._bounds, self._word_bounds = np.zeros((1 << 12) + 1, np.int64), np.zeros((1 << 12) + 1, np.int64)
        self._hashes = np.empty(1 << 12, np.uint64)
        self._learned = 0
        self._words_of.clear()
        self._rehash(1 << 13)

    def _rehash(self, size: int) -> None:
        self._slots = np.full(1 << max(13, int(size - 1).bit_length()), -1, np.int32)
        kernels.rehash(self._slots, self._hashes, self._known)

    def _intern(self, data: U8, offsets: I64) -> tuple[I32, I64]:
        """Return chunk ids of documents, and their end per document; new chunks get their words."""
        out, ends = np.empty(len(data) // 2 + len(offsets), np.int32), np.empty(len(offsets) - 1, np.int64)
        state = np.array([0, int(offsets[0]), 0, self._known], np.int64)
        while not kernels.intern(data, offsets, self._slots, self._hashes, self._blob, self._bounds, out, ends, state):
            self._known = int(state[3])
            self._grow(len(data))
        self._known = int(state[3])
        self._learn()
        return out[: state[2]], ends

    def _grow(self, num_bytes: int) -> None:
        known = self._known
        self._hashes = _with_room(self._hashes, known, 1)
        self._bounds = _with_room(self._bounds, known + 1, 1)
        if 2 * known >= len(self._slots):
            self._rehash(2 * len(self._slots))
        self._blob = _with_room(self._blob, int(self._bounds[known]), num_bytes)

    def _learn(self) -> None:
        """Find the words of the chunks that have none yet."""
        first, last = self._learned, self._known
        if first == last:
            return
        bounds = self._bounds[first : last + 1]
        raw = self._blob[bounds[0] : bounds[-1]].tobytes()
        chunks = [raw[start:stop].decode() for start, stop in itertools.pairwise((bounds - bounds[0]).tolist())]
        spelled = self._words_of(chunks)
        joined = np.frombuffer(b"".join(spelled), np.uint8)
        used = int(self._word_bounds[first])
        self._words = _with_room(self._words, used, len(joined))
        self._words[used : used + len(joined)] = joined
        self._word_bounds = _with_room(self._word_bounds, first + 1, last - first)
        self._word_bounds[first + 1 : last + 1] = used + np.cumsum([len(words) for words in spelled])
        self._learned = last


def _with_room(array: np.ndarray[Any, Any], used: int, more: int) -> Any:
    """Return an array that starts with the `used` first entries and has room for `more`; at least doubled if it grows."""
    if used + more <= len(array):
        return array
    grown = np.empty(max(2 * len(array), used + more), array.dtype)
    grown[:used] = array[:used]
    return grown


class _Pieces:
    """Words of chunks: simplify, split at blanks, ask spaCy for the pieces that its rules touch."""

    def __init__(self, tokenizer: Any) -> None:
        from datatrove.utils.text import simplify_text

        self._simplify: Callable[[str], str] = simplify_text
        self._tokenizer = tokenizer
        self._known: dict[str, bytes] = {}

    def clear(self) -> None:
        """Forget all pieces."""
        self._known.clear()

    def __call__(self, chunks: Sequence[str]) -> list[bytes]:
        """Return the words of each chunk, each word followed by a blank."""
        pieces = [self._simplify(chunk).split() for chunk in chunks]
        new = dict.fromkeys(piece for part in pieces for piece in part if piece not in self._known)
        asked = []
        for piece in new:
            if self._is_word(piece):
                self._known[piece] = piece.encode() + b" "
            else:
                asked.append(piece)
        for start in range(0, len(asked), _SPACY_AT_ONCE):
            part = asked[start : start + _SPACY_AT_ONCE]
            self._known.update(zip(part, self._ask(part), strict=True))
        return [b"".join([self._known[piece] for piece in part]) for part in pieces]

    def _is_word(self, piece: str) -> bool:
        """Return whether spaCy leaves a piece whole: no exception, no prefix, no suffix, no infix."""
        t = self._tokenizer
        return not (
            piece in t.rules or t.find_prefix(piece) or t.find_suffix(piece) or next(t.infix_finditer(piece), None)
        )

    def _ask(self, pieces: Sequence[str]) -> Iterator[bytes]:
        """Yield the words of pieces. Line ends between them keep spaCy's exceptions from joining neighbours."""
        with self._tokenizer.vocab.memory_zone():
            document = self._tokenizer("\n".join(pieces))
            words: list[str] = []
            for token in document:
                if token.text == "\n":
                    yield "".join(words).encode()
                    words = []
                elif text := token.text.strip():
                    words.append(text + " ")
            yield "".join(words).encode()


def text_bytes(texts: pa.Array) -> tuple[U8, I64]:
    """Return the UTF-8 bytes of a large_string array and their D + 1 offsets, without a copy where nothing is null."""
    if texts.null_count:
        texts = pc.fill_null(texts, "")
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if data is None or not len(texts):
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    return np.frombuffer(data, np.uint8)[: bounds[-1]], bounds
