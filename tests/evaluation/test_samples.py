"""Samples: reproducible, from the beginnings of held-out documents or given prompts."""

import json

import pytest

from modalities.errors import InputError
from modalities.evaluation.config import EvaluationSection, SamplesConfig
from modalities.evaluation.samples import beginning
from modalities.evaluation.stage import run


def section(**keys) -> EvaluationSection:
    return EvaluationSection(suite="samples", step=7, samples=SamplesConfig(tokens=6, **keys))


def test_prompts_are_beginnings_per_source(conversion, heldout, make_work) -> None:
    work = make_work(section(prompt_bytes=20, count=2), conversion=conversion, heldout=heldout)
    result = run(work)
    samples = json.loads((work.folder / "samples.json").read_text())
    assert [(s["source"], s["document"]) for s in samples] == [
        ("birds", "birds#0"),
        ("birds", "birds#1"),
        ("ships", "ships#3"),
        ("ships", "ships#5"),
    ]
    assert all(0 < len(s["prompt"].encode()) <= 20 for s in samples)
    assert samples == result.info["samples"] and result.counts == {"samples": 4}
    again = run(make_work(section(prompt_bytes=20, count=2), conversion=conversion, heldout=heldout))
    assert again.content == result.content
    other = run(make_work(section(prompt_bytes=20, count=2, seed=9), conversion=conversion, heldout=heldout))
    assert other.content != result.content


def test_given_prompts_each_with_a_seed_of_its_own(conversion, heldout, make_work) -> None:
    result = run(make_work(section(prompts=("the robin",), count=3), conversion=conversion, heldout=heldout))
    assert [s["seed"] for s in result.info["samples"]] == [1, 2, 3]
    assert len({s["text"] for s in result.info["samples"]}) > 1
    greedy = run(
        make_work(section(prompts=("the robin",), count=2, temperature=0.0), conversion=conversion, heldout=heldout)
    )
    assert len({s["text"] for s in greedy.info["samples"]}) == 1


@pytest.mark.parametrize(
    ("text", "num_bytes", "expected"),
    [
        ("one two three", 9, "one two"),
        ("one two three", 7, "one two"),
        ("one two", 50, "one two"),
        ("unbreakable", 4, "unbr"),
        ("schöne Möwe", 8, "schöne"),
        ("ööö", 3, "ö"),
        ("one\ntwo three", 8, "one\ntwo"),
    ],
)
def test_beginning_ends_before_a_cut_word(text: str, num_bytes: int, expected: str) -> None:
    assert beginning(text, num_bytes) == expected


def test_no_documents_to_take_prompts_from(conversion, make_heldout, make_work) -> None:
    with pytest.raises(InputError, match=r"give evaluation\.samples\.prompts"):
        run(make_work(section(), conversion=conversion, heldout=make_heldout([])))


def test_prompt_longer_than_the_context(conversion, heldout, make_work) -> None:
    with pytest.raises(InputError, match="expected fewer than 64 tokens, the model's context"):
        run(make_work(section(prompts=("robin " * 200,)), conversion=conversion, heldout=heldout))
