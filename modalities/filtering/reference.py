"""The same scores and decisions through datatrove itself: the oracle of the tests, and the way for languages and documents
that the memo does not cover (Chinese, Japanese, Thai, ...). About a hundred times slower.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from modalities.errors import InputError
from modalities.filtering.config import Recipe, ScoresSection
from modalities.filtering.measures import INTEGERS, Columns, names, stop_characters
from modalities.filtering.rewriting import c4_document, line_edits


def words_of(text: str, language: str) -> list[str]:
    """Return datatrove's words."""
    from datatrove.utils.text import split_into_words

    try:
        return list(split_into_words(text, language)) if text else []
    except (ValueError, ImportError) as error:
        raise InputError(f"language {language!r}: expected a tokenizer of datatrove, got: {error}") from None


def measure(texts: Sequence[str], section: ScoresSection) -> tuple[Columns, list[str]]:
    """Return the columns of `scores.score_texts`, own filters and language left out, and the texts after rewriting."""
    rows, rewritten = [], []
    for text in texts:
        row, final = _document(text, section)
        rows.append(row)
        rewritten.append(final)
    columns: Columns = {}
    for name in names(section):
        values = [row[name] for row in rows]
        columns[name] = np.array(values, np.int64 if name in INTEGERS else np.float64)
    return columns, rewritten


def _document(text: str, section: ScoresSection) -> tuple[dict[str, float], str]:
    words = words_of(text, section.words)
    row: dict[str, float] = {"words": len(words)}
    for rule in section.order:
        if rule == "gopher_repetition":
            row |= _gopher_repetition(text, words_of(text, section.words), section)
        elif rule == "gopher_quality":
            row |= _gopher_quality(text, words_of(text, section.words), section.stop_words)
        elif rule == "fineweb_quality":
            row |= _fineweb_quality(text, words_of(text, section.words), section)
        elif rule == "c4" and section.c4 is not None:
            joined, lorem, curly, kept = c4_document(text, section.c4)
            lines = joined.split("\n") if kept else []
            row |= {"c4_sentences": sum(_sentences(line, section.words) for line in lines)}
            row |= {"c4_lorem_line": lorem, "c4_curly_line": curly}
            text = joined.strip()
        elif rule == "line_edits" and section.line_edits is not None:
            before = len(words_of(text, section.words))
            text = line_edits(text, section.line_edits)
            row["removed_words_ratio"] = _ratio(before - len(words_of(text, section.words)), before)
    return row, text


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator != 0 else float("nan")


def _sentences(line: str, language: str) -> int:
    from datatrove.utils.text import split_into_sentences

    return len(split_into_sentences(line, language))


def _gopher_repetition(text: str, words: list[str], section: ScoresSection) -> dict[str, float]:
    from datatrove.pipeline.filters import gopher_repetition_filter as gopher

    rules = gopher.GopherRepetitionFilter()
    paragraphs, lines = rules.paragraph_exp.split(text.strip()), rules._line_splitter.split(text)
    row: dict[str, float] = {}
    for name, parts in (("para", paragraphs), ("line", lines)):
        elements, characters = gopher.find_duplicates(parts)
        row[f"dup_{name}_frac"] = _ratio(elements, len(parts))
        row[f"dup_{name}_char_frac"] = _ratio(characters, len(text))
    for size in section.top_n_grams:
        grams = gopher.get_n_grams(words, size)
        row[f"top_{size}_gram"] = _ratio(gopher.find_top_duplicate(grams) if grams else 0, len(text))
    for size in section.dup_n_grams:
        row[f"duplicated_{size}_n_grams"] = _ratio(gopher.find_all_duplicate(words, size), len(text))
    return row


def _gopher_quality(text: str, words: list[str], stop_words: tuple[str, ...]) -> dict[str, float]:
    from datatrove.utils.text import PUNCTUATION_SET

    real = [word for word in words if any(c not in PUNCTUATION_SET for c in word)]
    lines = text.splitlines()
    stops = set(stop_words)
    return {
        "quality_words": len(real),
        "mean_word_length": _ratio(sum(map(len, real)), len(real)),
        "hash_ratio": _ratio(text.count("#"), len(words)),
        "ellipsis_ratio": _ratio(text.count("...") + text.count("…"), len(words)),
        "bullet_lines_ratio": _ratio(sum(line.lstrip().startswith(("•", "-")) for line in lines), len(lines)),
        "ellipsis_lines_ratio": _ratio(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines)),
        "alpha_words_ratio": _ratio(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "stop_words": len(stops.intersection(words)),
        "stop_words_all": sum(word in stops for word in words),
    }


def _fineweb_quality(text: str, words: list[str], section: ScoresSection) -> dict[str, float]:
    from datatrove.pipeline.filters.gopher_repetition_filter import find_duplicates

    lines = [line for line in text.split("\n") if line.strip() != ""]
    marks = stop_characters(section.stop_chars)
    n = len(lines)
    return {
        "line_punct_ratio": _ratio(sum(line.endswith(marks) for line in lines), n),
        "short_line_ratio": _ratio(sum(len(line) <= section.short_line_length for line in lines), n),
        "char_dup_ratio": _ratio(find_duplicates(lines)[1], len(text.replace("\n", ""))) if n else float("nan"),
        "list_ratio": _ratio(text.count("\n"), len(words)),
    }


def filters(recipe: Recipe) -> list[Any]:
    """Return datatrove's filter objects for the rules of a recipe that datatrove has, in order."""
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    made: list[Any] = []
    for name in recipe.active:
        if name == "gopher_repetition" and (rep := recipe.gopher_repetition) is not None:
            made.append(
                GopherRepetitionFilter(
                    dup_line_frac=rep.dup_line_frac,
                    dup_para_frac=rep.dup_para_frac,
                    dup_line_char_frac=rep.dup_line_char_frac,
                    dup_para_char_frac=rep.dup_para_char_frac,
                    top_n_grams=tuple((limit.n, limit.fraction) for limit in rep.top_n_grams),
                    dup_n_grams=tuple((limit.n, limit.fraction) for limit in rep.dup_n_grams),
                    language=recipe.words,
                )
            )
        elif name == "gopher_quality" and (quality := recipe.gopher_quality) is not None:
            made.append(
                GopherQualityFilter(
                    min_doc_words=quality.min_doc_words,
                    max_doc_words=quality.max_doc_words,
                    min_avg_word_length=quality.min_avg_word_length,
                    max_avg_word_length=quality.max_avg_word_length,
                    max_symbol_word_ratio=quality.max_symbol_word_ratio,
                    max_bullet_lines_ratio=quality.max_bullet_lines_ratio,
                    max_ellipsis_lines_ratio=quality.max_ellipsis_lines_ratio,
                    max_non_alpha_words_ratio=quality.min_alpha_words_ratio,
                    min_stop_words=quality.min_stop_words,
                    stop_words=list(quality.stop_words),
                    language=recipe.words,
                )
            )
        elif name == "c4" and (c4 := recipe.c4) is not None:
            made.append(
                C4QualityFilter(
                    remove_citations=c4.remove_citations,
                    filter_no_terminal_punct=c4.filter_no_terminal_punct,
                    min_num_sentences=_or_off(c4.min_num_sentences),
                    min_words_per_line=_or_off(c4.min_words_per_line),
                    max_word_length=_or_off(c4.max_word_length),
                    filter_lorem_ipsum=c4.filter_lorem_ipsum,
                    filter_javascript=c4.filter_javascript,
                    filter_curly_bracket=c4.filter_curly_bracket,
                    filter_policy=c4.filter_policy,
                    language=recipe.words,
                )
            )
        elif name == "fineweb_quality" and (fineweb := recipe.fineweb_quality) is not None:
            made.append(
                FineWebQualityFilter(
                    line_punct_thr=-1.0 if fineweb.line_punct_thr is None else fineweb.line_punct_thr,
                    line_punct_exclude_zero=fineweb.line_punct_exclude_zero,
                    stop_chars=fineweb.stop_chars,
                    short_line_thr=_or_any(fineweb.short_line_thr),
                    short_line_length=fineweb.short_line_length,
                    char_duplicates_ratio=_or_any(fineweb.char_duplicates_ratio),
                    new_line_ratio=_or_any(fineweb.new_line_ratio),
                    language=recipe.words,
                )
            )
    return made


def _or_off(limit: int | None) -> int:
    return -1 if limit is None else limit


def _or_any(limit: float | None) -> float:
    return float("inf") if limit is None else limit


def decide(texts: Sequence[str], recipe: Recipe) -> tuple[list[str | None], list[str]]:
    """Return the reason for which datatrove drops each document (None: kept), and the texts as its filters leave them.

    Language identification is not among it: datatrove would download a model. `empty` where datatrove divides by zero.
    """
    from datatrove.data import Document

    chain = filters(recipe)
    reasons: list[str | None] = []
    final = []
    for text in texts:
        document = Document(text=text, id="")
        reasons.append(_first_reason(document, chain))
        final.append(document.text)
    return reasons, final


def _first_reason(document: Any, chain: list[Any]) -> str | None:
    for step in chain:
        try:
            verdict = step.filter(document)
        except ZeroDivisionError:
            return "empty"
        if verdict is not True:
            return str(verdict[1])
    return None
