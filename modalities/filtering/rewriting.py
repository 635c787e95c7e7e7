"""Rules that rewrite a document's lines: C4 (as datatrove has it) and RefinedWeb's line edits (as DCLM has them)."""

import dataclasses
import itertools
import re

import numpy as np

from modalities.filtering.config import C4, LineEdits
from modalities.filtering.memo import Array, Encoded, Vocabulary

CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
END_MARKS = (".", "?", "!", '"', "'")
_FOLDS_TO_ASCII = ("\u0130".encode(), "\u212a".encode())
"""Characters other than A-Z whose small form begins with an ASCII letter: dotted capital I and the Kelvin sign."""
_COUNTER = re.compile(
    r"\W*\d[\d.,]*\s?[km]?\s*(likes?|shares?|comments?|retweets?|reposts?|quotes?|bookmarks?|upvotes?|downvotes?|downloads?|views?|followers?)\W*",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rewritten:
    """Texts after a rewriting rule. `joined` still has blanks at its ends where a citation was removed there."""

    joined: list[bytes]
    lorem_line: Array
    curly_line: Array
    """First line of each document with 'lorem ipsum' or '{' that no earlier test removed; -1 if there is none."""
    num_kept: Array


def c4(encoded: Encoded, vocabulary: Vocabulary, rule: C4) -> Rewritten:
    """Apply C4's line rules to documents; its tests for whole documents are left to the decisions."""
    n = encoded.num_documents
    bounds = encoded.offsets.tolist()
    whole = encoded.buf.tobytes()
    raw = [whole[a:b] for a, b in itertools.pairwise(bounds)]
    phrases = [b"lorem ipsum", b"javascript", b"{", *(phrase.encode() for phrase in rule.policy_phrases)]
    ascii_only = all(phrase.isascii() for phrase in phrases) and len(phrases) <= 64
    skip = np.array([not _simple(text, rule, ascii_only=ascii_only) for text in raw], np.bool_)
    first = np.zeros(256, np.bool_)
    for phrase in phrases:
        first[[phrase[0], phrase[:1].upper()[0]]] = True
    sizes = np.zeros(len(phrases) + 1, np.int64)
    np.cumsum([len(phrase) for phrase in phrases], out=sizes[1:])
    out, offsets = np.empty((n, 3), np.int64), np.empty(n + 1, np.int64)
    buf = np.empty(len(encoded.buf) + len(encoded.lines), np.uint8)
    vocabulary.kernels.c4_lines(
        encoded.buf, encoded.chunks, encoded.lines, encoded.line_spans, encoded.doc_lines, vocabulary.lengths, skip,
        np.frombuffer(bytearray(b"".join(phrases)), np.uint8), sizes, first,
        rule.filter_no_terminal_punct, -1 if rule.min_words_per_line is None else rule.min_words_per_line,
        -1 if rule.max_word_length is None else rule.max_word_length, rule.filter_javascript, rule.filter_policy,
        buf, offsets, out,
    )  # fmt: skip
    done = buf[: offsets[-1]].tobytes()
    joined = [done[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    for i in np.flatnonzero(skip).tolist():
        text, *events = c4_document(raw[i].decode("utf-8"), rule)
        joined[i], out[i] = text.encode("utf-8"), events
    return Rewritten(joined=joined, lorem_line=out[:, 0], curly_line=out[:, 1], num_kept=out[:, 2])


def _simple(text: bytes, rule: C4, *, ascii_only: bool) -> bool:
    if rule.remove_citations and b"[" in text and CITATION.search(text.decode("utf-8")):
        return False
    if text.isascii():
        return True
    return ascii_only and not any(character in text for character in _FOLDS_TO_ASCII)


def c4_document(text: str, rule: C4) -> tuple[str, int, int, int]:
    """Return what `c4` says of one document: joined text, line of 'lorem ipsum', line of '{', kept lines."""
    kept: list[str] = []
    lorem = curly = -1
    for index, line in enumerate(text.splitlines()):
        line = line.strip()
        words = line.split()
        if rule.max_word_length is not None and any(len(word) > rule.max_word_length for word in words):
            continue
        if rule.remove_citations:
            line = CITATION.sub("", line)
        if rule.filter_no_terminal_punct and (not line.endswith(END_MARKS) or line.endswith("...")):
            continue
        if rule.min_words_per_line is not None and len(words) < rule.min_words_per_line:
            continue
        lower = line.lower()
        if lorem < 0 and "lorem ipsum" in lower:
            lorem = index
        if rule.filter_javascript and "javascript" in lower:
            continue
        if curly < 0 and "{" in line:
            curly = index
        if rule.filter_policy and any(phrase in lower for phrase in rule.policy_phrases):
            continue
        kept.append(line)
    return "\n".join(kept), lorem, curly, len(kept)


def line_edits(text: str, rule: LineEdits) -> str:
    """Return the document without lines that look like menus, counters or shouting."""
    lines = [edited for line in text.split("\n") if (edited := _edit(line, rule)) is not None]
    return "\n".join(lines)


def _edit(line: str, rule: LineEdits) -> str | None:
    if not line.strip():
        return line  # paragraphs stay apart
    words = line.split()
    over = (
        rule.max_uppercase_ratio is not None and sum(map(str.isupper, line)) / len(line) > rule.max_uppercase_ratio,
        rule.max_numeric_ratio is not None and sum(map(str.isdigit, line)) / len(line) > rule.max_numeric_ratio,
        rule.remove_counters and _COUNTER.fullmatch(line.strip()) is not None,
        rule.min_line_words is not None and len(words) < rule.min_line_words,
    )
    if any(over):
        return None
    if len(words) <= rule.short_line_words:
        line = _without_phrases(line, rule)
        if not line.strip():
            return None
    return line


def _without_phrases(line: str, rule: LineEdits) -> str:
    for phrase in rule.banned_anywhere:
        line = re.sub(re.escape(phrase), "", line, flags=re.IGNORECASE)
    for phrase in rule.banned_at_start:
        line = re.sub(r"\A\s*" + re.escape(phrase), "", line, flags=re.IGNORECASE)
    for phrase in rule.banned_at_end:
        line = re.sub(re.escape(phrase) + r"\s*\Z", "", line, flags=re.IGNORECASE)
    return line
