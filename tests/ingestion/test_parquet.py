"""Parquet and what it may hold."""

import datetime
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from modalities.errors import InputError


@pytest.fixture
def save(tmp_path: Path) -> Any:
    """Return a function that writes a Parquet file below `in`."""

    def run(name: str, table: pa.Table, **keys: Any) -> Path:
        path: Path = tmp_path / "in" / name
        pq.write_table(table, path, **keys)
        return path

    return run


def test_rows_become_documents(ingest: Any, save: Any) -> None:
    table = pa.table(
        {
            "id": pa.array([1, None, 3]),
            "text": ["a", "b\x00", "ü"],
            "url": ["http://x.y/", None, ""],
            "score": [0.5, float("nan"), None],
            "when": pa.array([1, None, 10**18 + 1], pa.timestamp("ns")),
            "day": [datetime.date(2024, 1, 2)] * 3,
            "tags": [["a"], [], None],
        }
    )
    save("1.parquet", table, row_group_size=2)
    done = ingest()
    assert done.documents[0] == {
        "id": "1",
        "position": 0,
        "text": "a",
        "url": "http://x.y/",
        "metadata": '{"day": "2024-01-02", "score": 0.5, "tags": ["a"], "when": "1970-01-01 00:00:00.000000001"}',
    }
    assert [d["id"] for d in done.documents] == ["1", "1.parquet#1", "3"] and done.texts == ["a", "b\x00", "ü"]
    assert '"score": null' in done.documents[1]["metadata"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_text_may_be_stored_in_several_ways(ingest: Any, save: Any, kind: pa.DataType) -> None:
    save("1.parquet", pa.table({"text": pa.array(["a", None, "b", "", "a"]).cast(kind)}))
    done = ingest()
    assert done.texts == ["a", "b", "a"] and done.reasons == ["missing_text", "empty_text"]


def test_a_bad_value_is_rejected_alone(ingest: Any, save: Any) -> None:
    values = pa.array([b"a", b"\xff", b"b" * 1001, b"c", b"d"], pa.binary())
    extra = pa.array([b"x", b"y", b"z", b"\xff", None], pa.binary())
    save("1.parquet", pa.table({"text": values, "extra": extra}))
    done = ingest(max_document_bytes=1000)
    assert done.texts == ["a", "c", "d"] and done.reasons == ["invalid_utf8", "too_large"]
    assert done.documents[1]["metadata"] == '{"extra": "\\\\xff"}' and [d["position"] for d in done.documents] == [
        0,
        3,
        4,
    ]


def test_columns_may_differ_between_files(ingest: Any, save: Any) -> None:
    save("1.parquet", pa.table({"text": ["a"], "n": [1]}))
    save("2.parquet", pa.table({"n": ["x"], "text": ["b"], "m": [True]}))
    assert [d["metadata"] for d in ingest().documents] == ['{"n": 1}', '{"m": true, "n": "x"}']


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"text": [1, 2]}), "column 'text' of type int64 instead of text"),
        (pa.table({"text": [["a"]]}), "column 'text' of type list"),
        (pa.table({"content": ["a"], "n": [1]}), r"columns content \(string\), n \(int64\), but no column 'text'"),
        (pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"]), "column 'text' twice"),
    ],
)
def test_a_wrong_column_is_an_error(ingest: Any, save: Any, table: pa.Table, message: str) -> None:
    save("1.parquet", table)
    with pytest.raises(InputError, match=rf"1\.parquet: expected parquet, got {message}"):
        ingest()


def test_an_empty_table_is_an_empty_unit(ingest: Any, save: Any) -> None:
    save("1.parquet", pa.table({"text": pa.array([], pa.string())}))
    assert ingest().results[0].counts["documents_in"] == 0


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "footer cannot be read"), (b'{"text": 1}', "got a file that starts with")]
)
def test_what_is_no_parquet_is_an_error(ingest: Any, write: Any, data: bytes, message: str) -> None:
    write("1.parquet", data)
    with pytest.raises(InputError, match=message):
        ingest()


def test_damage_in_a_row_group_loses_its_rows_and_says_how_many(ingest: Any, save: Any) -> None:
    texts = [os.urandom(40).hex() for _ in range(3000)]
    path = save("1.parquet", pa.table({"text": texts}), row_group_size=1000, compression="zstd", use_dictionary=False)
    column = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + 200 : column.data_page_offset + 300] = b"\xff" * 100
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"1\.parquet: .* damage after 1000 records: rows 1000 to 1999"):
        ingest()
    done = ingest(on_corrupt="quarantine")
    assert done.texts == texts[:1000] + texts[2000:] and dict(done.results[0].dropped) == {"corrupt": 1000}
    with pytest.raises(InputError, match="corrupt 1000"):
        ingest(on_corrupt="quarantine", corrupt_limit=0.2)


def test_the_documents_do_not_depend_on_how_a_file_is_cut(ingest: Any, save: Any) -> None:
    texts = [os.urandom(40).hex() if i % 7 else None for i in range(3000)]
    save("1.parquet", pa.table({"text": texts}), row_group_size=100)
    outcomes = [ingest(max_unit_bytes=limit) for limit in (10**9, 50_000, 20_000)]
    assert len({len(o.units) for o in outcomes}) == 3
    assert outcomes[0].documents == outcomes[1].documents == outcomes[2].documents
    assert outcomes[0].rejects == outcomes[1].rejects == outcomes[2].rejects
