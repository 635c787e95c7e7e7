"""The section's keys and what each node reads of them."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modalities.config import build, load, parse, plain, select
from modalities.errors import ConfigError, Invalid
from modalities.tokenization.config import TokenizationConfig, TokenizerSection, check, section, tokenizer_section


def _load(text: str) -> TokenizationConfig:
    return load(TokenizationConfig, parse(text, "run.yaml"), "tokenization")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {vocab_size: 256}", r"run.yaml:1: tokenization.train.vocab_size: expected 257"),
        ("train: {sample_bytes: 0}", "sample_bytes: expected a positive"),
        ("train: {train_on: {a: 0}}", "train_on.a: expected a positive weight"),
        ("train: {special_tokens: [a, a]}", "expected distinct"),
        ("verify_share: 1.5", "expected a share"),
        ("end_of_document: ''", "expected a token"),
        ("split_pattern: gpt3", "did you mean 'gpt2'"),
        ("special_tokens_in_text: literally", "did you mean 'literal'"),
        ("tokeniser: x", "did you mean 'tokenizer'"),
    ],
)
def test_bad_keys(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _load(text)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (TokenizationConfig(tokenizer=Path("nowhere.json")), "tokenizer"),
        (TokenizationConfig(chat_template=Path("nowhere.jinja")), "chat_template"),
        (_load("train: {train_on: {c: 1}}"), "train.train_on.c"),
        (_load("train: {vocab_size: 257, special_tokens: [a, b]}"), "train.vocab_size"),
    ],
)
def test_check(config: TokenizationConfig, key: str) -> None:
    with pytest.raises(Invalid) as error:
        check(config, ("a", "b"))
    assert error.value.key == key


def test_sections_survive_the_plan(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for config in (
        _load("train: {train_on: {a: 0.5, b: 1}}"),
        TokenizationConfig(tokenizer=tmp_path / "tokenizer.json"),
    ):
        made = tokenizer_section(config, ("a", "b", "c"))
        assert build(TokenizerSection, plain(made)) == made
        assert made.sources == (("a", "b") if config.tokenizer is None else ())


def _digested(config: TokenizationConfig, **more: Any) -> tuple[Any, Any]:
    config = dataclasses.replace(config, **more)
    return select(tokenizer_section(config, ("a",)), "result"), select(section(config), "result")


def test_what_enters_the_digest() -> None:
    base = TokenizationConfig()
    assert _digested(base, verify_share=0.5, per_arm=True) == _digested(base)
    assert _digested(base, special_tokens_in_text="special")[0] == _digested(base)[0]
    assert _digested(base, special_tokens_in_text="special")[1] != _digested(base)[1]
    assert _digested(base, split_pattern="o200k")[0] != _digested(base)[0]


def test_config_imports_nothing_heavy() -> None:
    script = "import sys; import modalities.tokenization.config; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "tokenizers", "pyarrow", "transformers"} & set(out)
