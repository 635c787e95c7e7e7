"""Held-out documents and their token ids, with one byte accounting for models and baselines.

Bits of a document: the sum of -log2 p over its tokens. The first token is predicted from the boundary token alone (the one
that stands before documents in training: begin of document if there is one, else end of document). The end-of-document token
after a document is not predicted, as in lm-eval's `loglikelihood_rolling`. Bytes: the UTF-8 bytes of the text as ingested,
whatever the tokenizer makes of it. Special tokens written out in a text are text.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from modalities.documents import GroupReader
from modalities.errors import InputError, StoreError
from modalities.work import Upstream

Ids = np.ndarray[Any, np.dtype[np.int64]]
COLUMNS = ["source", "id", "text", "language"]
LENGTHS = ((1_000, "under 1 kB"), (4_000, "1-4 kB"), (16_000, "4-16 kB"), (64_000, "16-64 kB"))
"""Length classes of documents: (first length beyond it in bytes, its name)."""
LONGEST = "64 kB and more"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One held-out document."""

    source: str
    id: str
    text: str
    language: str | None

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text.encode("utf-8"))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextTokenizer:
    """A tokenizer as evaluation needs it."""

    encode: Callable[[list[str]], list[Ids]]
    """Texts -> ids without any special token."""
    boundary: int
    """Id of the token that stands before a document."""
    end_of_document: int
    num_ids: int
    unknown: int | None
    """Id that stands for text the vocabulary cannot spell; such text is not fully accounted for."""


def read_documents(heldout: Upstream, *, per_source: int | None = None) -> Iterator[Document]:
    """Yield held-out documents in their order, all or the first `per_source` of each source."""
    seen: dict[str, int] = {}
    for group in GroupReader(heldout.folder / "documents.parquet").groups(COLUMNS):
        for row in group.to_pylist():
            seen[row["source"]] = seen.get(row["source"], 0) + 1
            if per_source is None or seen[row["source"]] <= per_source:
                yield Document(**row)


def sources_of(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Return documents by source, both in order."""
    grouped: dict[str, list[Document]] = {}
    for document in documents:
        grouped.setdefault(document.source, []).append(document)
    return grouped


def open_tokenizer(made: Upstream) -> TextTokenizer:
    """Open the tokenizer of `tokenization.tokenizer`; its manifest names the boundary tokens."""
    from tokenizers import Tokenizer

    path, info = made.folder / "tokenizer.json", made.manifest.info
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare exceptions
        raise StoreError(f"{path}: not a readable tokenizer ({error}); run `modalities store verify`") from None
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: list[str]) -> list[Ids]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int64) for encoding in encodings]

    end, begin = info["end_of_document_id"], info["begin_of_document_id"]
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_token")
    return TextTokenizer(
        encode=encode,
        boundary=end if begin is None else begin,
        end_of_document=end,
        num_ids=info["vocab_size"],
        unknown=tokenizer.token_to_id(unknown) if isinstance(unknown, str) and not model.get("byte_fallback") else None,
    )


def check_vocabulary(tokenizer: TextTokenizer, *, embeddings: int, what: str) -> None:
    """Raise `InputError` if the tokenizer makes ids that the model has no embedding for."""
    if tokenizer.num_ids > embeddings:
        raise InputError(
            f"{what}: model.vocab_size: expected at least the tokenizer's {tokenizer.num_ids} ids, got {embeddings} embeddings; "
            "evaluate with the tokenizer that the model was trained with"
        )


def length_class(num_bytes: int) -> str:
    """Return the name of a document's length class."""
    return next((name for limit, name in LENGTHS if num_bytes < limit), LONGEST)


# --- sums ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What one document costs."""

    document: Document
    num_tokens: int
    bits: float


def figures(scores: Iterable[Score]) -> dict[str, Any]:
    """Return sums over documents and the ratio of sums; ratios are None where there are no bytes or tokens."""
    scores = list(scores)
    bits = float(np.sum(np.array([score.bits for score in scores], np.float64)))
    num_bytes = sum(score.document.num_bytes for score in scores)
    tokens = sum(score.num_tokens for score in scores)
    return {
        "documents": len(scores),
        "bytes": num_bytes,
        "tokens": tokens,
        "bits": bits,
        "bits_per_byte": bits / num_bytes if num_bytes > 0 else None,
        "bits_per_token": bits / tokens if tokens > 0 else None,
    }


def breakdown(scores: list[Score]) -> dict[str, Any]:
    """Return the figures of all documents, and per source, language and length class."""
    keys: dict[str, Callable[[Score], str]] = {
        "sources": lambda score: score.document.source,
        "languages": lambda score: score.document.language or "unknown",
        "lengths": lambda score: length_class(score.document.num_bytes),
    }
    parts: dict[str, Any] = dict(figures(scores))
    for name, key in keys.items():
        grouped: dict[str, list[Score]] = {}
        for score in scores:
            grouped.setdefault(key(score), []).append(score)
        parts[name] = {group: figures(grouped[group]) for group in sorted(grouped)}
    return parts
