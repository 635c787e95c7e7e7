"""Own scores and decisions against datatrove's, document by document."""

import dataclasses
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from modalities.filtering import decisions, reference, scores
from modalities.filtering.config import C4, FilteringConfig, scores_section, section
from modalities.filtering.memo import Vocabulary


def _table(texts: list[str], chosen: FilteringConfig, vocabulary: Vocabulary | None) -> tuple[pa.Table, int]:
    wanted = scores_section(chosen, "s", None)
    tables, num_reference = [], 0
    for part in scores.slices(pa.chunked_array([pa.array(texts, pa.large_string())])):
        scored = scores.score_texts(part, wanted, vocabulary)
        num_reference += scored.num_reference
        tables.append(scores.as_table(part, scored, wanted))
    return pa.concat_tables(tables), num_reference


def _reasons(table: pa.Table, chosen: FilteringConfig) -> list[str | None]:
    wanted = section(chosen, "s", None)
    without = dataclasses.replace(wanted, recipe=dataclasses.replace(wanted.recipe, language=None))
    return decisions.first_reasons(pl.DataFrame(pl.from_arrow(table.drop(["text"]))), without).to_pylist()


@pytest.mark.parametrize("recipe", ["fineweb", "fineweb2-deu_Latn"])
def test_decisions_reasons_and_texts_are_datatroves(
    recipe: str, pages: list[str], novels: list[str], nasty: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "SLICE_BYTES", 100_000)
    texts = pages + novels + nasty
    chosen = FilteringConfig(recipe=recipe)
    wanted = section(chosen, "s", None)
    vocabulary = Vocabulary(wanted.recipe.words, limit=5000)  # so small that it is emptied on the way
    table, num_reference = _table(texts, chosen, vocabulary)
    expected, final = reference.decide(texts, wanted.recipe)
    found = _reasons(table, chosen)
    for text, own, datatrove in zip(texts, found, expected, strict=True):
        if text.strip() or datatrove is not None:
            assert own == datatrove, text[:200]
        else:
            assert own == "empty"
    kept = [i for i, reason in enumerate(expected) if reason is None and texts[i].strip()]
    assert len(kept) > 5 and len(set(expected)) > 8
    rewritten = table.column("text").to_pylist()
    for i in kept:
        assert (texts[i] if rewritten[i] is None else rewritten[i]) == final[i]
    assert num_reference < len(texts) / 10


@pytest.mark.parametrize("recipe", ["fineweb", "fineweb2-deu_Latn", "dclm-heuristics"])
def test_every_score_is_the_references(recipe: str, pages: list[str], novels: list[str], nasty: list[str]) -> None:
    texts = pages[::4] + novels[::4] + nasty
    chosen = FilteringConfig(recipe=recipe)
    vocabulary = Vocabulary(scores_section(chosen, "s", None).words, limit=10**6)
    own, expected = _table(texts, chosen, vocabulary)[0], _table(texts, chosen, None)[0]
    for name in expected.column_names:
        pairs = zip(texts, own.column(name).to_pylist(), expected.column(name).to_pylist(), strict=True)
        assert [(name, text, a, b) for text, a, b in pairs if a != b] == []


@pytest.mark.parametrize(
    "c4",
    [
        C4(),
        C4(filter_no_terminal_punct=False, min_words_per_line=None, max_word_length=None),
        C4(filter_no_terminal_punct=False, min_words_per_line=0, remove_citations=False, filter_javascript=False),
        C4(filter_no_terminal_punct=False, filter_policy=False, filter_lorem_ipsum=False),
        C4(filter_no_terminal_punct=False, filter_curly_bracket=False, min_num_sentences=None),
    ],
)
def test_c4_switches(c4: C4, pages: list[str], nasty: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = FilteringConfig(recipe="none")
    recipe = dataclasses.replace(section(chosen, "s", None).recipe, order=("c4",), c4=c4)
    monkeypatch.setattr("modalities.filtering.config.recipe_of", lambda *_: recipe)
    texts = pages[::3] + nasty
    table, _ = _table(texts, chosen, Vocabulary("en", limit=10**6))
    expected, final = reference.decide(texts, recipe)
    rewritten = table.column("text").to_pylist()
    for i, (own, datatrove) in enumerate(zip(_reasons(table, chosen), expected, strict=True)):
        if datatrove is None and not final[i].strip():
            assert own == "empty"
            continue
        assert own == datatrove, texts[i][:200]
        if datatrove is None:
            assert (texts[i] if rewritten[i] is None else rewritten[i]) == final[i]


def test_the_vocabulary_cache_changes_nothing(tmp_path: Path, novels: list[str]) -> None:
    chosen = FilteringConfig()
    cold = Vocabulary("eng", limit=10**6)
    expected = _table(novels, chosen, cold)[0]
    path = tmp_path / "v" / "eng.npz"
    cold.save(path)
    warm = Vocabulary("eng", limit=10**6)
    assert warm.load(path)
    assert _table(novels, chosen, warm)[0].equals(expected)
    assert warm.asked == 0
    assert _table(["Brand-new chnks, zzyzx!"], chosen, warm)[1] == 0 and warm.asked > 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other language", "missing"])
def test_a_damaged_vocabulary_cache_is_ignored(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "eng.npz"
    first = Vocabulary("eng", limit=10**6)
    _table(["Some words to know."], FilteringConfig(), first)
    first.save(path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes(b"" if damage == "empty" else bytes(data[:-20]) if damage == "cut" else bytes(data))
    if damage == "missing":
        path.unlink()
    other = Vocabulary("deu" if damage == "other language" else "eng", limit=10**6)
    assert not other.load(path)
    assert other.num_chunks == 0


def test_words_are_spacys_even_where_special_cases_cross_chunks() -> None:
    texts = ["x:x.SepalWidth/y ''s/before end", "yes--Mr. Bean said", "(Mr. Bean) :) foo): bar", "was--Mrs. . x"]
    table, _ = _table(texts, FilteringConfig(), Vocabulary("eng", limit=10**6))
    assert table.column("words").to_pylist() == [len(reference.words_of(text, "eng")) for text in texts]


def test_slices_cut_by_bytes_and_keep_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "SLICE_BYTES", 10)
    texts = ["a" * 25, "", "bb", "cc", "\u00e4" * 4, "d" * 9]
    parts = [
        part.to_pylist() for part in scores.slices(pa.chunked_array([pa.array(texts, pa.large_string()).slice(1)]))
    ]
    assert [text for part in parts for text in part] == texts[1:]
    assert all(sum(len(text.encode()) for text in part) <= 10 for part in parts)
