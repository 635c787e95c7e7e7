from fractions import Fraction

import pytest

from modalities.config import load, parse, select
from modalities.errors import ConfigError, Invalid
from modalities.packing import config


def loaded(text: str) -> config.PackingConfig:
    return load(config.PackingConfig, parse(text, "run.yaml"), "packing")


def test_weights_are_the_decimals_as_written() -> None:
    made = loaded("weights: {web: 0.6, wiki: 0.3, code: 1e-1}")
    assert config.section(made, ("web", "wiki", "code")).phases[0].weights == {
        "web": "3/5",
        "wiki": "3/10",
        "code": "1/10",
    }


@pytest.mark.parametrize(
    "text", ["{a: 3, b: 1}", "{a: 75, b: 25}", "{a: 0.75, b: 0.25}", "{a: 3/4, b: 1/4}", "{a: 74.5, b: 25.5}"]
)
def test_ratios_percentages_and_fractions(text: str) -> None:
    shares = config.mixture(loaded(f"weights: {text}").weights or {}, key="weights")
    assert sum(shares.values()) == 1
    assert shares["a"] == (Fraction(149, 200) if "74.5" in text else Fraction(3, 4))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weights: {a: 0.6, b: 0.3}", "add up to 1 or 100, got 0.9"),
        ("weights: {a: 2, b: -1}", r"weights\.b: expected a weight of 0 or more, got -1"),
        ("weights: {a: 0, b: 0}", "above 0, got only zeros"),
        ("weights: {}", "expected a weight for each source"),
        ("weights: {a: .nan, b: 1}", r"weights\.a: expected a number"),
        ("weights: {a: 1/0, b: 1}", r"weights\.a: expected a number"),
        ("weights: {a: 1}\nphases: [{weights: {a: 1}}]", "either weights or phases"),
        ("phases: [{weights: {a: 1}}, {weights: {a: 1}}]", "expected tokens in phase 0"),
        ("phases: [{weights: {a: 1}, tokens: 0}]", "expected a positive number of tokens, got 0"),
        ("sequence_length: 0", "sequence_length: expected 1 to"),
        ("window_documents: 0", "window_documents: expected 1 to"),
        ("max_epochs: 0", "max_epochs: expected a positive number, got 0"),
        ("method: bestfit", "did you mean 'best_fit'"),
    ],
)
def test_bad_config_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loaded(text)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("weights: {a: 1, c: 1}", "packing.weights.c", "one of the sources a, b, got 'c'"),
        ("weights: {a: 1}", "packing.weights", "got none for b; write 0"),
        ("phases: [{weights: {a: 1, c: 1}}]", "packing.phases[0].weights.c", "got 'c'"),
    ],
)
def test_weights_must_fit_the_sources(text: str, key: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        config.check(loaded(text), ("a", "b"))
    assert caught.value.key == key


def test_phases_that_end_before_the_budget() -> None:
    made = loaded("phases: [{weights: {a: 1}, tokens: 100}, {weights: {a: 1}, tokens: 50}]")
    config.check(made, ("a",), budget_tokens=150)
    with pytest.raises(Invalid, match="151 tokens of training, got 150"):
        config.check(made, ("a",), budget_tokens=151)


def test_what_enters_the_digest() -> None:
    concatenated = config.unit_section(loaded("window_documents: 7"))
    assert select(concatenated, "result") == {"sequence_length": 1024, "method": "concatenate"}
    made = loaded("max_epochs: 9")
    section = select(config.section(made, ("a",), budget_tokens=10), "result")
    assert section == select(config.section(loaded(""), ("a",)), "result")
    assert loaded("weights: {a: 3, b: 1}") != loaded("weights: {a: 0.75, b: 0.25}")
    assert config.section(loaded("weights: {a: 3, b: 1}"), ("a", "b")) == config.section(
        loaded("weights: {a: 0.75, b: 0.25}"), ("a", "b")
    )
