"""Decisions: thresholds on score columns, the first rule that fails as the reason, masking, and what the report shows of it.

Reading columns only, so that another threshold costs seconds. Reasons have datatrove's names.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from modalities.documents import DECISION_FIELDS, GroupReader, GroupWriter, decisions
from modalities.filtering import masking, reference
from modalities.filtering.config import DecisionSection, OwnFilter, Recipe
from modalities.manifest import write_json
from modalities.work import Result, Work, digest_of, sum_counts

SCHEMA = pa.schema([*DECISION_FIELDS, pa.field("masked", pa.large_string())])
EXCERPT_CHARACTERS = 400
_DATATROVE_RULES = ("gopher_repetition", "gopher_quality", "c4", "fineweb_quality")


def run_unit(work: Work[DecisionSection]) -> Result:
    """Write `filtering.parquet`: keep, reason, masked, row by row beside the documents of one unit."""
    section = work.section
    documents = GroupReader(work.inputs["ingestion"].folder / "documents.parquet")
    scores = GroupReader(work.inputs["scores"].folder / "scores.parquet")
    columns = [name for name in scores.columns if name != "text"]
    tally, num_masked = Tally(section.rejects_per_reason), 0
    with GroupWriter(work.folder / "filtering.parquet", SCHEMA) as writer:
        for index in range(documents.num_groups):
            base = documents.group(index, ["id", "text"])
            scored = scores.group(index)
            texts = pc.coalesce(_one(scored, "text"), _one(base, "text"))
            reasons = first_reasons(pl.DataFrame(pl.from_arrow(scored.select(columns))), section)
            if _by_datatrove(section):
                reasons = _reasons_of_datatrove(_one(base, "text").to_pylist(), scored.select(columns), section)
            keep = pc.is_null(reasons).to_numpy(zero_copy_only=False)
            masked = pa.nulls(len(reasons), pa.large_string())
            if section.recipe.pii is not None:
                kept = pc.if_else(pa.array(keep), texts, pa.scalar(None, pa.large_string()))
                masked, found = masking.mask(kept, section.recipe.pii)
                num_masked += found
            writer.write(decisions(keep, reasons).append_column("masked", masked))
            tally.add(scored, reasons, _one(base, "id"), _one(base, "text"))
            work.progress.update(writer.num_rows, documents.num_rows)
    info = tally.info() | {"masked_documents": num_masked}
    return Result(content=writer.content(), counts=tally.counts, dropped=tally.dropped, info=info)


def gather(work: Work[DecisionSection]) -> Result:
    """Add up the units, and write `rejects.json`: examples of dropped documents by reason."""
    counts, dropped = sum_counts(tuple(unit.manifest for unit in work.own_units))
    info = merge_info([unit.manifest.info for unit in work.own_units], work.section.rejects_per_reason)
    write_json(work.folder / "rejects.json", info["rejects"])
    content = digest_of([unit.content for unit in work.own_units])
    return Result(content=content, counts=counts, dropped=dropped, info=info)


# --- rules as expressions ---------------------------------------------------------------------------------------------


def first_reasons(scores: pl.DataFrame, section: DecisionSection) -> pa.Array:
    """Return the reason for which each row is dropped, null where it is kept."""
    return _evaluate(scores, [*recipe_tests(section.recipe), *_own_tests(section.own), ("empty", pl.col("blank_out"))])


def _evaluate(scores: pl.DataFrame, tests: list[tuple[str, pl.Expr]]) -> pa.Array:
    chain = pl.coalesce([pl.when(fails).then(pl.lit(reason)) for reason, fails in tests])
    found: pa.Array = scores.select(reason=chain).get_column("reason").to_arrow().cast(pa.string())
    return found


def recipe_tests(recipe: Recipe) -> Iterator[tuple[str, pl.Expr]]:
    """Yield (reason, expression that is true where a document fails) in the order in which datatrove tests."""
    tests = {
        "language": _language,
        "gopher_repetition": _gopher_repetition,
        "gopher_quality": _gopher_quality,
        "c4": _c4,
        "fineweb_quality": _fineweb_quality,
        "line_edits": _line_edits,
    }
    for rule in recipe.active:
        yield from tests[rule](recipe)


def _over(reason: str, column: str, limit: float | None) -> Iterator[tuple[str, pl.Expr]]:
    if limit is not None:
        yield reason, pl.col(column) > limit


def _under(reason: str, column: str, limit: float | None) -> Iterator[tuple[str, pl.Expr]]:
    if limit is not None:
        yield reason, pl.col(column) < limit


def _undefined(column: str, limit: float | None) -> Iterator[tuple[str, pl.Expr]]:
    """Where datatrove would divide by zero."""
    if limit is not None:
        yield "empty", pl.col(column).is_null()


def _language(recipe: Recipe) -> Iterator[tuple[str, pl.Expr]]:
    rule = recipe.language
    assert rule is not None
    yield "empty", pl.col("blank")
    if rule.labels is not None:
        yield "language", ~pl.col("language").is_in(list(rule.labels))
    yield "language_score", pl.col("language_score").cast(pl.Float64) <= rule.threshold


def _gopher_repetition(recipe: Recipe) -> Iterator[tuple[str, pl.Expr]]:
    rule = recipe.gopher_repetition
    assert rule is not None
    yield "empty", pl.col("characters") == 0
    for name in ("dup_para_frac", "dup_para_char_frac", "dup_line_frac", "dup_line_char_frac"):
        yield from _over(name, name, getattr(rule, name))
    for limit in rule.top_n_grams:
        yield from _over(f"top_{limit.n}_gram", f"top_{limit.n}_gram", limit.fraction)
    for limit in rule.dup_n_grams:
        name = f"duplicated_{limit.n}_n_grams"
        yield from _over(name, name, limit.fraction)


def _gopher_quality(recipe: Recipe) -> Iterator[tuple[str, pl.Expr]]:
    rule = recipe.gopher_quality
    assert rule is not None
    yield from _under("gopher_short_doc", "quality_words", rule.min_doc_words)
    yield from _over("gopher_long_doc", "quality_words", rule.max_doc_words)
    yield from _under("gopher_below_avg_threshold", "mean_word_length", rule.min_avg_word_length)
    yield from _over("gopher_above_avg_threshold", "mean_word_length", rule.max_avg_word_length)
    yield from _undefined("hash_ratio", rule.max_symbol_word_ratio)
    yield from _over("gopher_too_many_hashes", "hash_ratio", rule.max_symbol_word_ratio)
    yield from _over("gopher_too_many_ellipsis", "ellipsis_ratio", rule.max_symbol_word_ratio)
    yield from _undefined("bullet_lines_ratio", rule.max_bullet_lines_ratio)
    yield from _over("gopher_too_many_bullets", "bullet_lines_ratio", rule.max_bullet_lines_ratio)
    yield from _undefined("ellipsis_lines_ratio", rule.max_ellipsis_lines_ratio)
    yield from _over("gopher_too_many_end_ellipsis", "ellipsis_lines_ratio", rule.max_ellipsis_lines_ratio)
    yield from _undefined("alpha_words_ratio", rule.min_alpha_words_ratio)
    yield from _under("gopher_below_alpha_threshold", "alpha_words_ratio", rule.min_alpha_words_ratio)
    column = "stop_words" if rule.count_stop_words == "distinct" else "stop_words_all"
    yield from _under("gopher_enough_stop_words", column, rule.min_stop_words)


def _c4(recipe: Recipe) -> Iterator[tuple[str, pl.Expr]]:
    rule = recipe.c4
    assert rule is not None
    lorem, curly = pl.col("c4_lorem_line"), pl.col("c4_curly_line")
    if rule.filter_lorem_ipsum:
        first = curly.is_null() | (lorem <= curly) if rule.filter_curly_bracket else pl.lit(True)
        yield "lorem_ipsum", lorem.is_not_null() & first
    if rule.filter_curly_bracket:
        yield "curly_bracket", curly.is_not_null()
    yield from _under("too_few_sentences", "c4_sentences", rule.min_num_sentences)


def _fineweb_quality(recipe: Recipe) -> Iterator[tuple[str, pl.Expr]]:
    rule = recipe.fineweb_quality
    assert rule is not None
    yield "empty", pl.col("line_punct_ratio").is_null()
    if rule.line_punct_thr is not None:
        fails = pl.col("line_punct_ratio") < rule.line_punct_thr
        yield "line_punct_ratio", fails & (pl.col("line_punct_ratio") != 0) if rule.line_punct_exclude_zero else fails
    yield from _over("short_line_ratio", "short_line_ratio", rule.short_line_thr)
    yield from _over("char_dup_ratio", "char_dup_ratio", rule.char_duplicates_ratio)
    yield from _undefined("list_ratio", rule.new_line_ratio)
    yield from _over("list_ratio", "list_ratio", rule.new_line_ratio)


def _line_edits(recipe: Recipe) -> Iterator[tuple[str, pl.Expr]]:
    rule = recipe.line_edits
    assert rule is not None
    yield from _over("removed_words_ratio", "removed_words_ratio", rule.max_removed_words_ratio)


def _own_tests(own: tuple[OwnFilter, ...]) -> Iterator[tuple[str, pl.Expr]]:
    for one in own:
        yield from _under(one.name, f"own.{one.name}", one.minimum)
        yield from _over(one.name, f"own.{one.name}", one.maximum)


# --- datatrove's own filters as the judge -----------------------------------------------------------------------------


def _by_datatrove(section: DecisionSection) -> bool:
    """Whether `backend: datatrove` can be taken at its word: datatrove has no line edits, nor repeated stop words."""
    quality = section.recipe.gopher_quality
    distinct = quality is None or quality.count_stop_words == "distinct"
    return section.backend == "datatrove" and section.recipe.line_edits is None and distinct


def _reasons_of_datatrove(texts: list[str], scores: pa.Table, section: DecisionSection) -> pa.Array:
    """Run datatrove's filters on the documents; language and own filters keep their place in the order."""
    recipe = section.recipe
    frame = pl.DataFrame(pl.from_arrow(scores))
    own = _evaluate(frame, [*_own_tests(section.own), ("empty", pl.col("blank_out"))])
    if not set(recipe.active) & set(_DATATROVE_RULES):
        return first_reasons(frame, section)
    judged = pa.array(reference.decide(texts, recipe)[0], pa.string())
    if "language" not in recipe.active:
        return pc.coalesce(judged, own)
    language = _evaluate(frame, list(_language(recipe)))
    if recipe.active[0] == "language":
        return pc.coalesce(language, judged, own)
    return pc.coalesce(judged, language, own)


# --- what the report shows --------------------------------------------------------------------------------------------


class Tally:
    """Counts by reason, histograms and examples of one unit."""

    def __init__(self, per_reason: int) -> None:
        self.counts = dict.fromkeys(
            ("documents_in", "documents_out", "text_bytes_in", "text_bytes_out", "characters_in", "characters_out"), 0
        )
        self.dropped: dict[str, int] = {}
        self._per_reason = per_reason
        self._reasons: dict[str, dict[str, int]] = {}
        self._histograms: dict[str, dict[str, dict[str, int]]] = {
            name: {"in": {}, "out": {}} for name in ("languages", "lengths")
        }
        self._rejects: dict[str, list[dict[str, Any]]] = {}

    def add(self, scores: pa.Table, reasons: pa.Array, ids: pa.Array, texts: pa.Array) -> None:
        """Take in one row group."""
        names = ["language", "characters", "text_bytes", "characters_out", "text_bytes_out"]
        frame = pl.DataFrame(pl.from_arrow(scores.select(names))).with_columns(
            reason=pl.Series(reasons.to_pylist(), dtype=pl.String)
        )
        out = frame.filter(pl.col("reason").is_null())
        for side, part, suffix in (("in", frame, ""), ("out", out, "_out")):
            self.counts[f"documents_{side}"] += part.height
            self.counts[f"text_bytes_{side}"] += int(part.get_column(f"text_bytes{suffix}").sum())
            self.counts[f"characters_{side}"] += int(part.get_column(f"characters{suffix}").sum())
            lengths = part.get_column(f"characters{suffix}").to_numpy()
            _add(self._histograms["lengths"][side], map(_bin, np.log2(np.maximum(lengths, 1)).astype(int).tolist()))
            _add(self._histograms["languages"][side], part.get_column("language").to_list())
        gone = frame.filter(pl.col("reason").is_not_null()).group_by("reason", maintain_order=True)
        for reason, documents, size, characters in gone.agg(
            pl.len(), pl.col("text_bytes").sum(), pl.col("characters").sum()
        ).iter_rows():
            self.dropped[reason] = self.dropped.get(reason, 0) + documents
            add = {"documents": documents, "text_bytes": size, "characters": characters}
            known = self._reasons.setdefault(reason, dict.fromkeys(add, 0))
            for name, number in add.items():
                known[name] += number
        self._sample(frame, ids, texts)

    def _sample(self, frame: pl.DataFrame, ids: pa.Array, texts: pa.Array) -> None:
        """Keep the documents of each reason whose hashed identity is smallest: a sample that no unit boundary changes."""
        reasons = frame.get_column("reason").to_list()
        rows: dict[str, list[tuple[int, int]]] = {}
        for row, (reason, key) in enumerate(zip(reasons, ids.to_pylist(), strict=True)):
            if reason is not None:
                rows.setdefault(reason, []).append((xxhash.xxh3_64_intdigest(key.encode()), row))
        for reason, found in rows.items():
            examples = [
                {
                    "order": f"{order:016x}",
                    "id": ids[row].as_py(),
                    "language": frame["language"][row],
                    "characters": frame["characters"][row],
                    "excerpt": texts[row].as_py()[:EXCERPT_CHARACTERS],
                }
                for order, row in sorted(found)[: self._per_reason]
            ]
            self._rejects[reason] = _smallest([*self._rejects.get(reason, []), *examples], self._per_reason)

    def info(self) -> dict[str, Any]:
        """Return what goes into the manifest."""
        return {"reasons": self._reasons, "rejects": self._rejects, **self._histograms}


def merge_info(infos: list[Mapping[str, Any]], per_reason: int) -> dict[str, Any]:
    """Add up the info of units."""
    reasons: dict[str, dict[str, int]] = {}
    rejects: dict[str, list[dict[str, Any]]] = {}
    histograms: dict[str, dict[str, dict[str, int]]] = {
        name: {"in": {}, "out": {}} for name in ("languages", "lengths")
    }
    for info in infos:
        for reason, numbers in info["reasons"].items():
            known = reasons.setdefault(reason, dict.fromkeys(numbers, 0))
            for name, number in numbers.items():
                known[name] += number
        for reason, examples in info["rejects"].items():
            rejects[reason] = _smallest([*rejects.get(reason, []), *examples], per_reason)
        for name, sides in histograms.items():
            for side, total in sides.items():
                for label, number in info[name][side].items():
                    total[label] = total.get(label, 0) + number
    masked = sum(info["masked_documents"] for info in infos)
    return {"reasons": reasons, "rejects": rejects, **histograms, "masked_documents": masked}


def _smallest(examples: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return sorted(examples, key=lambda example: (example["order"], example["id"]))[:count]


def _add(histogram: dict[str, int], labels: Any) -> None:
    for label in labels:
        name = str(label)
        histogram[name] = histogram.get(name, 0) + 1


def _bin(power: int) -> str:
    return str(2**power)


def _one(table: pa.Table, column: str) -> pa.Array:
    combined = table.column(column).combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
