"""Shapes of chunks give spaCy's words, without asking it."""

import itertools
import random

import pytest

from modalities.filtering.words import _SHAPED_LANGUAGES, Words

CORES = (
    "word",
    "Word",
    "WORD",
    "camelCase",
    "McX",
    "ab",
    "AB",
    "aB",
    "\u00c4rger",
    "na\u00efve",
    "xMr",
    "Mr",
    "etc",
    "f\u00f6r",
)
JOINED = (
    "well-known",
    "and/or",
    "www.example.com",
    "key=value",
    "a.b",
    "foo--bar",
    "f(x)",
    "Smith:Paul",
    "Foo.Bar",
    "x,y",
)
OPEN = ("", "(", '"', "\u201e", "[", "--", ":", "$", "#")
CLOSE = ("", ",", ".", ").", '"', "...", "\u2026", ":)", "!?", "\u201c,", "-", "/", "%", "*")


@pytest.mark.parametrize("language", sorted(_SHAPED_LANGUAGES))
def test_shapes_split_as_spacy_does(language: str) -> None:
    words = Words(language)
    every = ["".join(parts) for parts in itertools.product(OPEN, (*CORES, *JOINED), CLOSE)]
    random.Random(1).shuffle(every)
    words.split(every[:400])  # learns shapes from these
    chunks = every[200:800]
    assert list(zip(*words.split(chunks), strict=True)) == list(words._ask(chunks))


def test_only_new_shapes_and_what_has_none_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    words = Words("en")
    words.split(["(house,"])
    asked: list[str] = []
    ask = words._ask
    monkeypatch.setattr(words, "_ask", lambda chunks: (asked.extend(chunks), ask(chunks))[1])
    found, fragile = words.split(["(garden,", "(Mr,", "don't", "3km", "\u6c49", "(river,"])
    assert found[0] == ["(", "garden", ","] and found[-1] == ["(", "river", ","] and fragile[0] is False
    assert asked == ["(Mr,", "don't", "3km", "\u6c49"]
