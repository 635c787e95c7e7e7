"""Scores of documents through the vocabulary memo: the numbers that datatrove's filters compare with thresholds.

Every function returns columns by name; `reference.py` computes the same ones with datatrove. A ratio is NaN where datatrove
would divide by zero.
"""

from collections.abc import Sequence

import numpy as np

from modalities.filtering.config import ScoresSection
from modalities.filtering.memo import Array, Encoded, Vocabulary

Columns = dict[str, Array]
INTEGERS = ("words", "quality_words", "stop_words", "stop_words_all", "c4_sentences", "c4_lorem_line", "c4_curly_line")


def names(section: ScoresSection) -> list[str]:
    """Return the names of the columns that the rules of a section need, language and own filters left out."""
    found = ["words"]
    for rule in section.order:
        found += {
            "language": [],
            "gopher_repetition": [
                *("dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac"),
                *(f"top_{n}_gram" for n in section.top_n_grams),
                *(f"duplicated_{n}_n_grams" for n in section.dup_n_grams),
            ],
            "gopher_quality": [
                *("quality_words", "mean_word_length", "hash_ratio", "ellipsis_ratio", "bullet_lines_ratio"),
                *("ellipsis_lines_ratio", "alpha_words_ratio", "stop_words", "stop_words_all"),
            ],
            "c4": ["c4_sentences", "c4_lorem_line", "c4_curly_line"],
            "fineweb_quality": ["line_punct_ratio", "short_line_ratio", "char_dup_ratio", "list_ratio"],
            "line_edits": ["removed_words_ratio"],
        }[rule]
    return found


def ratio(numerator: Array, denominator: Array) -> Array:
    """Divide whole numbers; NaN for a denominator of 0."""
    out = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=out, where=denominator != 0)
    return out


def gopher_repetition(
    encoded: Encoded, vocabulary: Vocabulary, *, top_sizes: Sequence[int], dup_sizes: Sequence[int]
) -> Columns:
    """Return shares of repeated lines, paragraphs and n-grams."""
    kernels, n = vocabulary.kernels, encoded.num_documents
    repeated = np.empty((n, 6), np.int64)
    kernels.repeated_lines(encoded.buf, encoded.offsets, repeated)
    length = encoded.characters
    columns = {
        "dup_para_frac": ratio(repeated[:, 1], repeated[:, 0]),
        "dup_para_char_frac": ratio(repeated[:, 2], length),
        "dup_line_frac": ratio(repeated[:, 4], repeated[:, 3]),
        "dup_line_char_frac": ratio(repeated[:, 5], length),
    }
    tokens, bounds = vocabulary.tokens(encoded)
    top, dup = np.empty((n, len(top_sizes)), np.int64), np.empty((n, len(dup_sizes)), np.int64)
    if top_sizes:
        kernels.top_grams(tokens, bounds, vocabulary.token_length, np.array(top_sizes), top)
    if dup_sizes:
        kernels.duplicate_grams(
            tokens,
            bounds,
            vocabulary.token_length,
            vocabulary.token_hash,
            vocabulary.token_power,
            np.array(dup_sizes),
            dup,
        )
    for i, size in enumerate(top_sizes):
        columns[f"top_{size}_gram"] = ratio(np.maximum(top[:, i], 0), length)
    for i, size in enumerate(dup_sizes):
        columns[f"duplicated_{size}_n_grams"] = ratio(dup[:, i], length)
    return columns


def gopher_quality(encoded: Encoded, vocabulary: Vocabulary, *, stop_words: tuple[str, ...]) -> Columns:
    """Return word counts and ratios of symbols, bullets, ellipses and stop words."""
    n = encoded.num_documents
    sums = np.empty((n, 8), np.int64)
    vocabulary.kernels.quality(
        encoded.chunks, encoded.lines, encoded.doc_lines, vocabulary.attributes, vocabulary.flags, sums
    )
    words, quality_words, characters, alpha, hashes, ellipses, bullets, ends = sums.T
    lines = np.diff(encoded.doc_lines)
    tokens, bounds = vocabulary.tokens(encoded)
    stops = np.empty((n, 2), np.int64)
    vocabulary.kernels.stop_words(tokens, bounds, vocabulary.stop_index(stop_words), len(stop_words), stops)
    return {
        "quality_words": quality_words,
        "mean_word_length": ratio(characters, quality_words),
        "hash_ratio": ratio(hashes, words),
        "ellipsis_ratio": ratio(ellipses, words),
        "bullet_lines_ratio": ratio(bullets, lines),
        "ellipsis_lines_ratio": ratio(ends, lines),
        "alpha_words_ratio": ratio(alpha, words),
        "stop_words": stops[:, 0],
        "stop_words_all": stops[:, 1],
    }


def fineweb_quality(encoded: Encoded, words: Array, vocabulary: Vocabulary, section: ScoresSection) -> Columns:
    """Return shares of marked, short and repeated lines, and line ends per word."""
    out = np.empty((encoded.num_documents, 5), np.int64)
    codes = np.array(sorted(map(ord, stop_characters(section.stop_chars))), np.int64)
    vocabulary.kernels.line_quality(encoded.buf, encoded.offsets, codes, section.short_line_length, out)
    lines, marked, short, repeated, feeds = out.T
    return {
        "line_punct_ratio": ratio(marked, lines),
        "short_line_ratio": ratio(short, lines),
        "char_dup_ratio": np.where(lines == 0, np.nan, ratio(repeated, encoded.characters - feeds)),
        "list_ratio": ratio(feeds, words),
    }


def word_counts(encoded: Encoded, vocabulary: Vocabulary) -> Array:
    """Return the number of words of each document."""
    per_chunk = np.diff(vocabulary.token_offsets)[encoded.chunks]
    sums = np.zeros(len(per_chunk) + 1, np.int64)
    np.cumsum(per_chunk, out=sums[1:])
    return sums[encoded.doc_chunks[1:]] - sums[encoded.doc_chunks[:-1]]


def stop_characters(own: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return FineWeb's terminal marks, or those of the config."""
    if own is not None:
        return own
    from datatrove.utils.text import TERMINAL_PUNCTUATION

    return tuple(TERMINAL_PUNCTUATION)


def sentences(encoded: Encoded, vocabulary: Vocabulary) -> Array:
    """Return the number of sentences of each document, line by line."""
    out = np.empty(encoded.num_documents, np.int64)
    vocabulary.kernels.sentences(
        encoded.chunks, encoded.gaps, encoded.lines, encoded.tails, encoded.doc_lines,
        vocabulary.token_offsets, vocabulary.chunk_tokens, vocabulary.token_class, out,
    )  # fmt: skip
    return out
