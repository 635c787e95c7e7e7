"""Recipes and their overrides: every value stated, datatrove's defaults, errors that name the line."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    c4_filters,
    gopher_quality_filter,
)
from datatrove.pipeline.filters.language_filter import LanguageFilter
from datatrove.pipeline.formatters.pii import PIIFormatter

from modalities import config as strict
from modalities.errors import ConfigError, Invalid
from modalities.filtering import config as own
from modalities.filtering.config import FilteringConfig, HeldoutConfig, Recipe

Load = Callable[[str], FilteringConfig]
RECIPES = ["fineweb", "fineweb2-deu_Latn", "dclm-heuristics", "none"]


def _recipe(name: str) -> Recipe:
    return own.recipe_of(FilteringConfig(recipe=name), "s")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], own.GramLimit):
        return tuple((limit.n, limit.fraction) for limit in value)
    return value


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_states_every_value(name: str) -> None:
    tree = strict.read(own.RECIPES / f"{name}.yaml")
    recipe = _recipe(name)
    for field in dataclasses.fields(recipe):
        stated = tree.at(field.name)
        assert stated is not None, field.name
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            assert set(stated.plain()) == {inner.name for inner in dataclasses.fields(value)}


@pytest.mark.parametrize(
    ("rule", "reference", "renamed", "left_out"),
    [
        ("gopher_repetition", GopherRepetitionFilter, {}, {"exclusion_writer", "language"}),
        (
            "gopher_quality",
            GopherQualityFilter,
            {"max_non_alpha_words_ratio": "min_alpha_words_ratio"},
            {"exclusion_writer", "language", "stop_words"},
        ),
        ("c4", C4QualityFilter, {}, {"exclusion_writer", "language", "split_paragraph", "filter_no_terminal_punct"}),
        ("fineweb_quality", FineWebQualityFilter, {}, {"exclusion_writer", "language"}),
        (
            "pii",
            PIIFormatter,
            {
                "remove_emails": "emails",
                "remove_ips": "ips",
                "only_remove_public_ips": "public_ips_only",
                "email_replacement": "email_replacements",
                "ip_replacement": "ip_replacements",
            },
            set(),
        ),
    ],
)
def test_fineweb_is_datatroves_defaults(rule: str, reference: Any, renamed: dict[str, str], left_out: set[str]) -> None:
    rules = getattr(_recipe("fineweb"), rule)
    for name, parameter in inspect.signature(reference.__init__).parameters.items():
        if name != "self" and name not in left_out:
            assert _plain(getattr(rules, renamed.get(name, name))) == parameter.default, name
            default = getattr(type(rules)(), renamed.get(name, name))
            assert _plain(default) == parameter.default, name


def test_fineweb_values_that_are_no_signature_defaults() -> None:
    recipe = _recipe("fineweb")
    assert recipe.gopher_quality is not None and recipe.c4 is not None and recipe.language is not None
    assert list(recipe.gopher_quality.stop_words) == gopher_quality_filter.STOP_WORDS
    assert list(recipe.c4.policy_phrases) == c4_filters.POLICY_SUBSTRINGS
    assert recipe.c4.filter_no_terminal_punct is False
    assert (
        recipe.language.threshold == inspect.signature(LanguageFilter.__init__).parameters["language_threshold"].default
    )
    assert recipe.order == ("language", "gopher_repetition", "gopher_quality", "c4", "fineweb_quality")


def test_german_values() -> None:
    recipe = _recipe("fineweb2-deu_Latn")
    assert recipe.gopher_repetition is not None and recipe.gopher_quality is not None
    assert recipe.fineweb_quality is not None and recipe.c4 is None
    assert [limit.fraction for limit in recipe.gopher_repetition.dup_n_grams] == [
        0.141,
        0.134,
        0.126,
        0.117,
        0.108,
        0.098,
    ]
    assert recipe.gopher_repetition.dup_para_frac is None
    assert recipe.gopher_quality.max_avg_word_length == 15 and recipe.gopher_quality.min_avg_word_length is None
    assert recipe.fineweb_quality.new_line_ratio == 0.152 and recipe.fineweb_quality.short_line_thr is None
    assert recipe.order == ("language", "gopher_repetition", "fineweb_quality", "gopher_quality")


@pytest.mark.parametrize("name", RECIPES)
def test_sections_survive_the_plan(name: str) -> None:
    chosen = FilteringConfig(recipe=name)
    scores, decisions = own.scores_section(chosen, "s", None), own.section(chosen, "s", None)
    assert strict.build(own.ScoresSection, strict.plain(scores)) == scores
    assert strict.build(own.DecisionSection, strict.plain(decisions)) == decisions
    heldout = own.heldout_section(HeldoutConfig(), {"a": "deu_Latn", "b": None, "c": "en"})
    assert heldout.languages == {"a": "de", "b": None, "c": "en"}
    assert strict.build(own.HeldoutSection, strict.plain(heldout)) == heldout


def test_thresholds_leave_scores_alone_and_what_scores_read_does_not(filtering_config: Load) -> None:
    base = own.scores_section(FilteringConfig(), "s", None)
    thresholds = filtering_config(
        "rules: {gopher_quality: {min_doc_words: 3, min_stop_words: 0}, c4: {min_num_sentences: 1, filter_curly_bracket: false},"
        " fineweb_quality: {char_duplicates_ratio: 0.1}, language: {threshold: 0.2}, pii: null}"
    )
    assert own.scores_section(thresholds, "s", None) == base
    assert own.section(thresholds, "s", None) != own.section(FilteringConfig(), "s", None)
    for rules in ("c4: {filter_javascript: false}", "gopher_quality: {stop_words: [a, the]}", "c4: null"):
        assert own.scores_section(filtering_config(f"rules: {{{rules}}}"), "s", None) != base


def test_a_source_has_its_own_recipe(filtering_config: Load) -> None:
    chosen = filtering_config(
        "rules: {gopher_quality: {min_doc_words: 7}}\n"
        "sources: {de: {recipe: fineweb2-deu_Latn, rules: {gopher_quality: {max_doc_words: null}}}, x: {rules: {c4: null}}}"
    )
    german, other, plain = (own.section(chosen, name, None).recipe for name in ("de", "x", "y"))
    assert german.gopher_quality is not None and other.gopher_quality is not None
    assert german.words == "deu_Latn" and german.gopher_quality.max_doc_words is None
    assert german.gopher_quality.min_doc_words == 50  # overrides of the run's recipe are not meant for another one
    assert other.c4 is None and "c4" not in other.active and other.gopher_quality.min_doc_words == 7
    assert plain.c4 is not None
    own.check(chosen, {"de": "de", "x": "en", "y": "eng_Latn"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rules:\n  gopher_quality:\n    min_doc_word: 3",
            "run.yaml:3: filtering.rules.gopher_quality.min_doc_word: unknown key; did you mean",
        ),
        (
            "rules:\n  c4:\n    min_num_sentences: many",
            "run.yaml:3: filtering.rules.c4.min_num_sentences: expected a whole number",
        ),
        (
            "rules:\n  fineweb_quality: {short_line_thr: -1}",
            "run.yaml:2: filtering.rules.fineweb_quality.short_line_thr: expected 0 or more, or null, got -1.0",
        ),
        ("rules:\n  line_edits: {}", "filtering.rules.line_edits: expected the rule to stand in order"),
        ("rules:\n  order: [c4, c4]", "filtering.rules.order: expected each rule once"),
        ("sources:\n  x:\n    rules: {c5: null}", "run.yaml:3: filtering.sources.x.rules.c5: unknown key"),
        ("rules: 3", "expected a mapping of rules"),
    ],
)
def test_faults_in_rules_name_line_and_key(filtering_config: Load, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        own.check(filtering_config(text), {"x": None})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "sources", "key", "message"),
    [
        ("recipe: finewebb", {"a": None}, "recipe", "expected one of dclm-heuristics, fineweb"),
        ("recipe: fineweb", {"a": "de"}, "recipe", "which is for en; set filtering.sources.a.recipe"),
        ("sources: {b: {recipe: none}}", {"a": "en"}, "sources.b", "expected a source of ingestion.sources (a)"),
        ("sources: {a: {recipe: fineweb2-deu_Latn}}", {"a": "en"}, "sources.a.recipe", "which is for de"),
        ("own: [{name: x, function: 'no_such_module_at_all:f'}]", {"a": "en"}, "own", "expected an importable module"),
    ],
)
def test_what_does_not_fit_the_sources(
    filtering_config: Load, text: str, sources: dict[str, str | None], key: str, message: str
) -> None:
    with pytest.raises(Invalid) as error:
        own.check(filtering_config(text), sources)
    assert error.value.key == key and message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("own: [{name: X, function: 'a:b'}]", "filtering.own[0].name: expected small letters"),
        ("own: [{name: x, function: ab}]", "filtering.own[0].function: expected package.module:function"),
        (
            "own: [{name: x, function: 'a:b', minimum: 2, maximum: 1}]",
            "filtering.own[0].minimum: expected at most maximum",
        ),
        ("backend: fast", "filtering.backend: expected one of 'auto', 'memo', 'datatrove', got 'fast'"),
        ("vocabulary_chunks: 3", "filtering.vocabulary_chunks: expected at least 1000, got 3"),
    ],
)
def test_faults_in_the_section(filtering_config: Load, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        filtering_config(text)
    assert message in str(error.value)


def test_a_recipe_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("words: de\norder: [gopher_quality]\ngopher_quality: {min_doc_words: 5}\n")
    recipe = _recipe(str(path))
    assert recipe.active == ("gopher_quality",) and recipe.gopher_quality is not None
    assert recipe.gopher_quality.min_doc_words == 5 and recipe.gopher_quality.max_doc_words == 100_000
