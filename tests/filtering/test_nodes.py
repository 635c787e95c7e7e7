"""The nodes `filtering.scores` and `filtering` on units, as the job runner calls them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from modalities.documents import read_groups
from modalities.errors import InputError
from modalities.filtering import decisions, masking, reference, scores
from modalities.filtering.config import FilteringConfig, Pii, scores_section, section

Run = Callable[..., Any]
PROSE = (
    "The house that we have seen is to be sold with all that is in it. It was built by the father of the present owner. "
    "People say that nobody should be sad about it, and they have a point. Still, the garden is going to be missed by many. "
    "Some of them came to look at it once more. Others have been there in the morning with their children. "
)


def _both(run_node: Run, unit: Any, chosen: FilteringConfig) -> tuple[Any, Any, Any]:
    scored, score_result = run_node(scores.run_unit, scores_section(chosen, "s", "en"), {"ingestion": unit})
    filtered, result = run_node(decisions.run_unit, section(chosen, "s", "en"), {"ingestion": unit, "scores": scored})
    return scored, filtered, (score_result, result)


def test_rows_and_row_groups_stay_aligned(make_unit: Run, run_node: Run, pages: list[str], novels: list[str]) -> None:
    texts = pages[:20] + novels[:12] + ["", PROSE]
    unit = make_unit(texts, group_rows=7)
    scored, filtered, (_, result) = _both(run_node, unit, FilteringConfig())
    groups = list(read_groups({"ingestion": unit, "scores": scored, "filtering": filtered}))
    keep = [bool(k) for group in groups for k in group.keep]
    table = pq.read_table(filtered.folder / "filtering.parquet")
    assert len(groups) == 5 and keep == table.column("keep").to_pylist()
    assert [reason is None for reason in table.column("reason").to_pylist()] == keep
    assert keep[-1] and not keep[-2] and table.column("reason")[len(texts) - 2].as_py() == "empty"
    assert result.counts["documents_in"] == len(texts) and result.counts["documents_out"] == sum(keep)
    assert result.counts["text_bytes_in"] == sum(len(text.encode()) for text in texts)
    kept = [text for group in groups for text in group.texts.to_pylist() if text is not None]
    assert result.counts["text_bytes_out"] == sum(len(text.encode()) for text in kept)


def test_an_empty_unit_and_one_of_nothing_but_drops(make_unit: Run, run_node: Run) -> None:
    for name, texts in (("none", []), ("bad", ["", " ", "x"])):
        _, filtered, (_, result) = _both(run_node, make_unit(texts, name=name), FilteringConfig())
        assert result.counts["documents_in"] == len(texts) and result.counts["documents_out"] == 0
        assert sum(result.dropped.values()) == len(texts)
        assert pq.read_metadata(filtered.folder / "filtering.parquet").num_rows == len(texts)


def test_contents_do_not_depend_on_units_or_cache(make_unit: Run, run_node: Run, pages: list[str]) -> None:
    texts = [*pages[:12], "mail me@home.org now. " * 20 + PROSE, PROSE + " Or you@work.com, or him@bar.de."]
    ids = [f"id{i}" for i in range(len(texts))]
    chosen = FilteringConfig(rejects_per_reason=2)
    whole = _both(run_node, make_unit(texts, name="w", ids=ids), chosen)
    parts = [
        _both(run_node, make_unit(texts[a:b], name=f"p{a}", ids=ids[a:b]), chosen)
        for a, b in ((0, 5), (5, 13), (13, 14))
    ]
    rows = pq.read_table(whole[1].folder / "filtering.parquet").to_pylist()
    assert rows == [row for part in parts for row in pq.read_table(part[1].folder / "filtering.parquet").to_pylist()]
    gathered = [
        run_node(decisions.gather, section(chosen, "s", "en"), {}, own_units=tuple(part[1] for part in some))[1]
        for some in ([whole], parts)
    ]
    assert gathered[0].counts == gathered[1].counts and gathered[0].dropped == gathered[1].dropped
    assert gathered[0].info == gathered[1].info
    again = _both(run_node, make_unit(texts, name="again", ids=ids), chosen)
    assert again[2][0].content == whole[2][0].content and again[2][1].content == whole[2][1].content


def test_rejects_and_histograms_for_the_report(make_unit: Run, run_node: Run) -> None:
    texts = [
        PROSE,
        "short",
        "kurz und deutsch, nicht wahr, das ist aber sch\u00f6n geworden",
        "too short again",
        "brief",
    ]
    _, filtered, (_, result) = _both(run_node, make_unit(texts), FilteringConfig(rejects_per_reason=1))
    gathered, total = run_node(
        decisions.gather, section(FilteringConfig(rejects_per_reason=1), "s", "en"), {}, own_units=(filtered,)
    )
    assert total.info["rejects"] == result.info["rejects"]
    assert (gathered.folder / "rejects.json").is_file()
    assert all(len(examples) == 1 for examples in total.info["rejects"].values())
    assert total.info["rejects"]["language"][0]["excerpt"] == texts[2]
    assert sum(total.info["languages"]["in"].values()) == 5 and sum(total.info["languages"]["out"].values()) == 1
    assert total.info["lengths"]["out"] == {"256": 1}
    assert {reason: n["documents"] for reason, n in total.info["reasons"].items()} == dict(total.dropped)


def test_keep_everything_but_empty(make_unit: Run, run_node: Run) -> None:
    _, filtered, _ = _both(run_node, make_unit(["a", "\u3000\n", "b@c.de"]), FilteringConfig(recipe="none"))
    table = pq.read_table(filtered.folder / "filtering.parquet")
    assert table.column("reason").to_pylist() == [None, "empty", None]
    assert table.column("masked").null_count == 3


def test_backend_datatrove_gives_the_same(make_unit: Run, run_node: Run, pages: list[str], novels: list[str]) -> None:
    texts = [*pages[:15], *novels[:3], PROSE, ""]
    made = {}
    for backend in ("memo", "datatrove"):
        chosen = FilteringConfig(backend=backend)  # type: ignore[arg-type]
        made[backend] = _both(
            run_node, make_unit(texts, name=backend, ids=[str(i) for i in range(len(texts))]), chosen
        )[2]
    for memo, datatrove in zip(*made.values(), strict=True):
        assert memo.content == datatrove.content
    assert made["datatrove"][0].info["backend"] == "datatrove"


@pytest.mark.parametrize(
    ("words", "backend"),
    [("eng", "memo"), ("deu_Latn", "memo"), ("cmn_Hani", "datatrove"), ("tha", "datatrove"), ("jpn", "datatrove")],
)
def test_auto_takes_the_memo_where_it_covers_the_language(words: str, backend: str) -> None:
    wanted = dataclasses.replace(scores_section(FilteringConfig(), "s", None), words=words)
    assert scores.resolve_backend(wanted) == backend


def test_a_language_without_a_tokenizer_is_an_input_error() -> None:
    with pytest.raises(InputError, match="expected a tokenizer of datatrove"):
        reference.words_of("a b", "qqq")


def test_masking_is_datatroves_and_starts_anew_in_each_document() -> None:
    from datatrove.pipeline.formatters.pii import PIIFormatter

    texts = [
        "a@b.de, c@d.org and e@f.com",
        "8.8.8.8 but not 192.168.0.1, 10.0.0.1 or 999.1.1.1",
        "no at all 1.2.3",
        "x@y.zz 1.1.1.1",
    ]
    import pyarrow as pa

    masked, number = masking.mask(pa.array([*texts, None], pa.large_string()), Pii())
    expected = [PIIFormatter().format(text) for text in texts]
    assert masked.to_pylist() == [None if a == b else a for a, b in zip(expected, texts, strict=True)] + [None]
    assert number == 3 and masked[0].as_py() != texts[0]
    only = masking.mask_text(
        "a@b.de 8.8.8.8 10.0.0.1", Pii(emails=False, public_ips_only=False, ip_replacements=("0.0.0.0",))
    )
    assert only == "a@b.de 0.0.0.0 0.0.0.0"


def test_the_documented_own_filter_works(
    make_unit: Run, run_node: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modalities import config as strict

    blocks = (Path(__file__).parents[2] / "docs" / "own-filter.md").read_text().split("```")
    code, text = blocks[1].removeprefix("python\n"), blocks[3].removeprefix("yaml\n")
    monkeypatch.chdir(tmp_path)
    Path("my_filters.py").write_text(code)
    tree = strict.parse(text, "run.yaml").at("filtering")
    assert tree is not None
    chosen = strict.load(FilteringConfig, tree, "filtering")
    texts = [PROSE, PROSE.replace(".", "!")]
    scored, filtered, _ = _both(run_node, make_unit(texts), chosen)
    assert pq.read_table(filtered.folder / "filtering.parquet").column("reason").to_pylist() == [None, "shouting"]
    assert pq.read_table(scored.folder / "scores.parquet").column("own.shouting")[0].as_py() == 0
    before = scores_section(chosen, "s", "en")
    Path("my_filters.py").write_text(code + "\n# changed\n")
    assert scores_section(chosen, "s", "en") != before
    with pytest.raises(InputError, match="changed since the plan was made"):
        run_node(scores.run_unit, before, {"ingestion": make_unit(texts, name="u1")})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [1.0]", "expected 2 numbers for as many texts, got 1"),
        ("return [float('nan')] * len(texts)", "got NaN for the text that begins"),
        ("return ['x'] * len(texts)", "expected a list of numbers, got ValueError"),
        ("return texts[99]", "expected a list of numbers, got IndexError"),
    ],
)
def test_faulty_own_filters_are_named(
    make_unit: Run, run_node: Run, in_empty_folder: None, body: str, message: str
) -> None:
    from modalities.filtering.config import OwnFilter

    name = f"faulty_{abs(hash(body))}"
    Path(f"{name}.py").write_text(f"def f(texts):\n    {body}\n")
    chosen = FilteringConfig(recipe="none", own=(OwnFilter(name="x", function=f"{name}:f", minimum=0.0),))
    with pytest.raises(InputError, match=message):
        run_node(scores.run_unit, scores_section(chosen, "s", None), {"ingestion": make_unit(["a", "b"])})
