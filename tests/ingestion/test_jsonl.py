"""JSONL and what it may hold."""

import gzip
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.documents import DOCUMENTS, GROUP_ROWS
from modalities.errors import InputError
from modalities.ingestion.config import IngestionConfig, Source, section
from modalities.ingestion.jsonl import read
from modalities.ingestion.records import Document, Meter
from modalities.ingestion.streams import Input

ALL = {"corrupt_limit": 1.0}


def _line(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


def test_a_record_becomes_a_row(ingest: Any, write: Any) -> None:
    first = _line(id="a", text="Grüße\n\nzwei", url="https://example.org/", n=[1, {"k": None}], date="2024")
    write("1.jsonl", first + _line(id=7, text="b", url=3) + _line(text=" c "))
    done = ingest()
    at = len(first.encode())
    assert done.documents[0] == {
        "id": "a",
        "position": 0,
        "text": "Grüße\n\nzwei",
        "url": "https://example.org/",
        "metadata": '{"date": "2024", "n": [1, {"k": null}]}',
    }
    assert done.documents[1] == {"id": "7", "position": at, "text": "b", "url": None, "metadata": '{"url": 3}'}
    last = at + len(_line(id=7, text="b", url=3))
    assert done.documents[2] == {
        "id": f"1.jsonl#{last}",
        "position": last,
        "text": " c ",
        "url": None,
        "metadata": None,
    }
    (result,) = done.results
    assert result.counts["bytes_in"] == last + len(_line(text=" c ")) and result.counts["text_bytes"] == 13 + 1 + 3


def test_files_have_the_agreed_schema_and_bounded_row_groups(ingest: Any, write: Any, tmp_path: Path) -> None:
    write("1.jsonl", "".join(_line(text=f"t{i}") for i in range(GROUP_ROWS + 5)))
    write("2.jsonl", "".join(_line(text="x" * 9_000_000) for _ in range(3)))
    ingest()
    first, second = (pq.ParquetFile(tmp_path / "out" / str(i) / "documents.parquet") for i in (0, 1))
    assert first.schema_arrow.equals(DOCUMENTS)
    assert [first.metadata.row_group(i).num_rows for i in range(2)] == [GROUP_ROWS, 5]
    assert second.num_row_groups == 3


BAD: list[tuple[bytes, str]] = [
    (b'{"text": "a\xff"}', "invalid_utf8"),
    (b'{"text": "a\\ud800"}', "lone_surrogate"),
    (b'{"text": "a\\udc00b"}', "lone_surrogate"),
    (b'{"text": "a\x00"}', "invalid_json"),
    (b"\x00\x00\x00", "invalid_json"),
    (b'{"text": "a"', "invalid_json"),
    (b'{"text": "a"} {"text": "b"}', "invalid_json"),
    (b"[" * 5000, "invalid_json"),
    (b'["text"]', "wrong_type"),
    (b'{"text": 3}', "wrong_type"),
    (b'{"text": ["a"]}', "wrong_type"),
    (b'{"txt": "a"}', "missing_text"),
    (b'{"text": null}', "missing_text"),
    (b'{"text": ""}', "empty_text"),
    (b'{"text": " \\n\\t\\u00a0"}', "empty_text"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_line_is_rejected_alone(ingest: Any, write: Any, bad: bytes, reason: str) -> None:
    write("1.jsonl", b'{"text": "before"}\n' + bad + b'\n{"text": "after"}')
    done = ingest()
    assert done.texts == ["before", "after"] and done.reasons == [reason]
    assert done.rejects[0]["position"] == 19 and dict(done.results[0].dropped) == {reason: 1}
    assert done.documents[1]["position"] == 19 + len(bad) + 1
    assert len(done.results[0].info["examples"][reason]) == 1


def test_nul_as_an_escape_is_kept_and_so_is_every_other_character(ingest: Any, write: Any) -> None:
    text = "a\x00b\u2028c\x85\U0001f600\r\n"
    write("1.jsonl", _line(text=text))
    assert ingest().texts == [text]


def test_blank_lines_marks_and_windows_newlines_are_no_records(ingest: Any, write: Any) -> None:
    write("1.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n\n{"text": "b"}\r\n')
    done = ingest()
    assert done.texts == ["a", "b"] and done.results[0].counts["blank_lines"] == 3
    assert [d["position"] for d in done.documents] == [0, 24]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_unit(ingest: Any, write: Any, data: bytes) -> None:
    write("1.jsonl", data)
    done = ingest()
    assert done.documents == [] and done.rejects == [] and done.results[0].counts["documents_in"] == 0


def test_extra_keys_may_differ(ingest: Any, write: Any) -> None:
    write("1.jsonl", _line(text="a", extra=1) + _line(text="b", extra="x", more={"y": 1.5}))
    write("2.jsonl", _line(text="c", extra=[True]))
    assert [d["metadata"] for d in ingest().documents] == [
        '{"extra": 1}',
        '{"extra": "x", "more": {"y": 1.5}}',
        '{"extra": [true]}',
    ]


def test_other_keys_may_hold_the_text(ingest: Any, write: Any) -> None:
    write("1.jsonl", _line(content="a", key="k", link="http://a.b/"))
    (document,) = ingest(text_key="content", id_key="key", url_key="link").documents
    assert (document["text"], document["id"], document["url"], document["metadata"]) == ("a", "k", "http://a.b/", None)


def test_a_wrong_text_key_is_an_error_that_shows_the_keys(ingest: Any, write: Any) -> None:
    write("1.jsonl", _line(content="a") * 3)
    with pytest.raises(
        InputError, match=r"1\.jsonl: expected at most 50% broken records, got 3 of 3 \(missing_text 3\)"
    ):
        ingest()
    done = ingest(**ALL)
    assert done.documents == [] and "keys: content" in done.rejects[0]["excerpt"]


def test_the_share_is_of_a_file_however_it_is_cut(ingest: Any, write: Any) -> None:
    write("1.jsonl", ("x" * 99 + "\n") * 300 + _line(text="a" * 80) * 310)
    assert ingest(max_unit_bytes=30_000).whole.dropped["invalid_json"] == 300
    write("1.jsonl", ("x" * 99 + "\n") * 320 + _line(text="a" * 80) * 310)
    with pytest.raises(InputError, match="got 320 of 630"):
        ingest(max_unit_bytes=30_000)


def test_a_long_record_is_read_past(ingest: Any, write: Any) -> None:
    write("1.jsonl", _line(text="a") + _line(text="x" * 3_000_000) + _line(text="y" * 990) + _line(text="b"))
    done = ingest(max_document_bytes=1000)
    assert done.texts == ["a", "b"] and done.reasons == ["too_large", "too_large"]
    assert all(len(r["excerpt"]) <= 200 for r in done.rejects)


def test_the_order_and_ids_of_records_with_equal_ids_are_kept_and_listed(ingest: Any, write: Any) -> None:
    write("1.jsonl", _line(id="x", text="1") + _line(id="y", text="2") + _line(id="x", text="3"))
    write("2.jsonl", _line(id="x", text="4") + _line(id="z", text="5"))
    done = ingest()
    assert done.texts == ["1", "2", "3", "4", "5"]
    assert done.whole.counts["duplicate_ids"] == 2 and done.whole.info["duplicate_ids"] == ["x"]
    with pytest.raises(InputError, match="got 2 repeated documents, such as 'x'"):
        ingest(on_duplicate_id="fail")


@pytest.mark.parametrize("compression", ["gz", "zst"])
def test_compressed_files_are_read_whole(ingest: Any, write: Any, compression: str) -> None:
    plain = [("".join(_line(text=f"{i} {k} " + "word " * 50) for i in range(3000))).encode() for k in range(2)]
    press = gzip.compress if compression == "gz" else zstandard.ZstdCompressor().compress
    write(f"1.jsonl.{compression}", press(plain[0]) + press(plain[1]) + (b"\0" * 100 if compression == "gz" else b""))
    write("2.jsonl", plain[0] + plain[1])  # the suffix does not decide: a file is what its first bytes say
    write("3.jsonl", press(plain[0] + plain[1]))
    done = ingest()
    assert len(done.texts) == 18_000 and done.texts[:6000] == done.texts[6000:12_000] == done.texts[12_000:]
    assert [d["position"] for d in done.documents[:6000]] == [d["position"] for d in done.documents[6000:12_000]]


@pytest.mark.parametrize("compression", ["gz", "zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage after"])
def test_damage_is_an_error_or_what_precedes_it_is_kept(ingest: Any, write: Any, compression: str, damage: str) -> None:
    lines = [json.dumps({"text": f"{i} {i**9 % 10**9} " + "word " * 40}) for i in range(20_000)]
    press = gzip.compress if compression == "gz" else zstandard.ZstdCompressor(write_checksum=True).compress
    data = bytearray(press("\n".join(lines).encode()))
    if damage == "cut":
        del data[len(data) * 3 // 4 :]
    elif damage == "flipped":
        data[len(data) * 3 // 4 : len(data) * 3 // 4 + 8] = b"\xff" * 8
    else:
        data += b"garbage"
    name = f"1.jsonl.{compression}"
    write(name, bytes(data))
    with pytest.raises(
        InputError, match=rf"{name}: expected a whole jsonl file, got damage after \d+ records: .* at byte \d+"
    ):
        ingest()
    done = ingest(on_corrupt="quarantine")
    kept = len(done.texts)
    sure = kept if damage != "flipped" else 12_000  # checksums come late: some records before the damage may be garbled
    assert done.texts[:sure] == [json.loads(line)["text"] for line in lines[:sure]]
    assert kept >= 19_999 if damage == "garbage after" else 12_000 < kept < 20_000
    assert done.whole.counts["corrupt_files"] == 1 and (damage == "flipped" or set(done.reasons) <= {"truncated"})
    assert done.whole.info["damaged"][0].startswith(name)


def test_a_damaged_head_loses_too_much_for_quarantine(ingest: Any, write: Any) -> None:
    write(
        "1.jsonl.gz", gzip.compress(b"".join(str(i).encode() for i in range(1_000_000)), 1)[:12] + b"\xff" * 4_000_000
    )
    with pytest.raises(InputError, match="of it is lost: replace the file or raise"):
        ingest(on_corrupt="quarantine")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"PAR1\x15\x04\x15", "a Parquet file"),
        (b"BZh91AY&SY\x00", "a bzip2 file; recompress"),
        (b'\xff\xfe{\0"\0', "UTF-16 text; convert"),
        (b"WARC/1.0\r\n", "a WARC file"),
        (gzip.compress(gzip.compress(b"{}")), "data that is compressed twice"),
        (b"x" * 257 + b"ustar\x0000", "a tar archive"),
    ],
)
def test_a_file_of_another_kind_is_named(ingest: Any, write: Any, data: bytes, kind: str) -> None:
    write("1.jsonl", data)
    with pytest.raises(InputError, match=rf"1\.jsonl: expected jsonl, got {kind}"):
        ingest()


GOOD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40).filter(lambda t: not t.isspace())
RECORD = st.one_of(
    GOOD.map(lambda text: (json.dumps({"text": text}).encode(), text)),
    GOOD.map(lambda text: (json.dumps({"text": text}, ensure_ascii=False).encode(), text)),
    st.sampled_from([(bad, None) for bad, _ in BAD]),
    st.sampled_from([(b"", None), (b" ", None), (b"\r", None)]),
    st.binary(max_size=20).filter(lambda b: b"\n" not in b and not b.startswith(b"{")).map(lambda b: (b, None)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORD, max_size=30), st.booleans())
def test_good_records_come_out_in_order_however_the_file_is_cut(
    records: list[tuple[bytes, str | None]], last: bool
) -> None:
    data = b"\n".join(line for line, _ in records) + (b"\n" if last else b"")
    own = section(IngestionConfig(sources={"s": Source(paths=("a.jsonl",))}), "s")
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(data)
        for number in (1, 2, 7):
            bounds = [len(data) * i // number for i in range(number + 1)]
            found, meter = [], Meter()
            for start, end in sorted(set(itertools.pairwise(bounds)) - {(0, 0)} or {(0, 0)}):
                with Input(path, start=max(0, start - 1)) as stream:
                    found += list(read(stream, own, meter, end=end, skip_first=start > 0))
            outcomes.append((found, meter.blank_lines))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    found, blank = outcomes[0]
    texts = [r.text for r in found if isinstance(r, Document) and not (r.text == "" or r.text.isspace())]
    assert texts == [text for _, text in records if text is not None]
    assert len(found) + blank == (data.count(b"\n") + (not data.endswith(b"\n")) if data else 0)
