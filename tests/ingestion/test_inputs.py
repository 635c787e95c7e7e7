"""Files of a source: globs, names, identities, units, and what is said when something is wrong."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from modalities.errors import InputError
from modalities.ingestion import inputs
from modalities.ingestion.config import IngestionConfig, Source


def _config(*paths: str, max_unit_bytes: int = 256_000_000, **keys: object) -> IngestionConfig:
    source = Source(paths=paths, **keys)  # type: ignore[arg-type]
    return IngestionConfig(sources={"s": source}, max_unit_bytes=max_unit_bytes)


def _write(path: Path, data: bytes = b'{"text": "a"}\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_names_are_relative_to_the_common_folder_of_the_globs_and_sorted(tmp_path: Path) -> None:
    for name in ("d/b/2.jsonl", "d/b/1.jsonl", "d/a/x/3.jsonl", "d/a/x.txt", "e/4.jsonl"):
        _write(tmp_path / name)
    config = _config("d/b/*.jsonl", "d/a/**/*.jsonl", "d/b/1.jsonl")
    units = inputs.units(config, "s", tmp_path, tmp_path / "cache")
    assert [u["name"] for u in units] == ["a/x/3.jsonl", "b/1.jsonl", "b/2.jsonl"]
    assert [u["path"] for u in units] == [str(tmp_path / "d" / u["name"]) for u in units]


def test_one_more_file_changes_no_other_unit(tmp_path: Path) -> None:
    _write(tmp_path / "d/a/1.jsonl")
    before = inputs.units(_config("d/**/*.jsonl"), "s", tmp_path, tmp_path / "cache")
    _write(tmp_path / "d/0.jsonl", b"{}\n")
    after = inputs.units(_config("d/**/*.jsonl"), "s", tmp_path, tmp_path / "cache")
    assert len(after) == 2 and before[0] in after


def test_the_identity_is_name_and_content_and_not_place_or_time(tmp_path: Path) -> None:
    data = b'{"text": "b"}\n'
    for changed, place in enumerate(("one", "two")):
        os.utime(_write(tmp_path / place / "d/1.jsonl", data), (1, changed))
    found = [inputs.units(_config("d/*"), "s", tmp_path / place, tmp_path / "cache")[0] for place in ("one", "two")]
    assert {**found[0], "path": ""} == {**found[1], "path": ""}
    assert found[0]["checksum"] == f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"
    assert found[0]["checksum_of"] == "content" and found[0]["bytes"] == len(data)


def test_a_changed_file_is_seen_although_the_cache_knows_it(tmp_path: Path) -> None:
    path = _write(tmp_path / "1.jsonl")
    os.utime(path, (1, 1))
    (first,) = inputs.units(_config("*.jsonl"), "s", tmp_path, tmp_path / "cache")
    path.write_bytes(b'{"text": "z"}\n')
    os.utime(path, (2, 2))
    (second,) = inputs.units(_config("*.jsonl"), "s", tmp_path, tmp_path / "cache")
    assert first["bytes"] == second["bytes"] and first["checksum"] != second["checksum"]
    with pytest.raises(InputError, match="has changed since"):
        inputs.check_unchanged(first, tmp_path / "cache")
    inputs.check_unchanged(second, tmp_path / "cache")
    path.unlink()
    with pytest.raises(InputError, match="expected a readable file"):
        inputs.check_unchanged(second, tmp_path / "cache")


def test_known_files_are_not_read_again(tmp_path: Path) -> None:
    for i in range(1000):
        os.utime(_write(tmp_path / f"d/{i}.jsonl"), (1, 1))
    config = _config("d/*.jsonl")
    first = inputs.units(config, "s", tmp_path, tmp_path / "cache")
    for i in range(1000):
        (tmp_path / f"d/{i}.jsonl").chmod(0)  # reading would fail, or, for root, be slow only
    started = time.process_time()
    assert inputs.units(config, "s", tmp_path, tmp_path / "cache") == first
    assert time.process_time() - started < 0.5, "aim: 0.05 s; ten times that is a fault"


def test_a_broken_cache_costs_time_only(tmp_path: Path) -> None:
    _write(tmp_path / "1.jsonl")
    first = inputs.units(_config("*.jsonl"), "s", tmp_path, tmp_path / "cache")
    for damaged in (b"", b"[1]", b"{"):
        _write(tmp_path / "cache/input-checksums.json", damaged)
        assert inputs.units(_config("*.jsonl"), "s", tmp_path, tmp_path / "cache") == first


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("none-*.jsonl", "expected at least one file, got none that matches"),
        ("none.jsonl", "expected a file, got nothing at"),
        ("folder", r"expected files, got a folder; write folder/\*"),
        ("link.jsonl", "expected a readable file"),
        ("strange.xyz", "expected a name ending in"),
    ],
)
def test_errors_name_the_key_and_the_glob(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
    _write(tmp_path / "strange.xyz")
    with pytest.raises(InputError, match=message) as caught:
        inputs.units(_config(pattern), "s", tmp_path, tmp_path / "cache")
    assert str(caught.value).startswith("ingestion.sources.s.paths: ") and pattern in str(caught.value)


def test_a_name_with_brackets_is_a_name_if_it_exists(tmp_path: Path) -> None:
    _write(tmp_path / "a[1].jsonl")
    assert [u["name"] for u in inputs.units(_config("a[1].jsonl"), "s", tmp_path, tmp_path / "cache")] == ["a[1].jsonl"]


def test_large_plain_files_become_ranges_that_cover_them(tmp_path: Path) -> None:
    _write(tmp_path / "1.jsonl", b'{"text": "a"}\n' * 1000)
    _write(tmp_path / "2.jsonl.gz", b"\x1f\x8b" + b"x" * 14_000)
    units = inputs.units(_config("*", max_unit_bytes=5000), "s", tmp_path, tmp_path / "cache")
    assert [u["name"] for u in units] == ["1.jsonl"] * 3 + ["2.jsonl.gz"]
    assert [(u.get("start"), u.get("end")) for u in units[:3]] == [(0, 4666), (4666, 9333), (9333, 14_000)]
    assert "start" not in units[3], "a compressed file cannot be entered in the middle"


def test_large_text_is_cut_only_where_documents_are_lines_or_paragraphs(tmp_path: Path) -> None:
    _write(tmp_path / "1.txt", b"line\n" * 2000)
    for documents, number in (("file", 1), ("paragraphs", 10), ("lines", 10)):
        config = _config("*", max_unit_bytes=1000, documents=documents)
        assert len(inputs.units(config, "s", tmp_path, tmp_path / "cache")) == number


def test_parquet_is_cut_at_row_groups(tmp_path: Path) -> None:
    table = pa.table({"text": [os.urandom(400).hex() for _ in range(40)]})
    pq.write_table(table, tmp_path / "1.parquet", row_group_size=4, compression="none")
    units = inputs.units(_config("*", max_unit_bytes=10_000), "s", tmp_path, tmp_path / "cache")
    assert len(units) > 2
    assert [u["start"] for u in units] == [0, *(u["end"] for u in units[:-1])] and units[-1]["end"] == 10
    _write(tmp_path / "1.parquet", b"PAR1" + b"x" * 20_000)
    (unit,) = inputs.units(_config("*", max_unit_bytes=10_000), "s", tmp_path, tmp_path / "cache")
    assert "start" not in unit, "what is wrong with it is for its job to say"


def test_huge_files_are_known_by_their_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "FULL_HASH_BYTES", 3 << 20)
    path = _write(tmp_path / "1.jsonl", b"a" * (4 << 20))
    (unit,) = inputs.units(_config("*.jsonl"), "s", tmp_path, tmp_path / "cache")
    assert unit["checksum_of"] == "size, name, first and last MiB"
    path.write_bytes(b"a" * ((4 << 20) - 1) + b"b")
    assert inputs.units(_config("*.jsonl"), "s", tmp_path, tmp_path / "cache")[0]["checksum"] != unit["checksum"]
    path.rename(tmp_path / "2.jsonl")
    path.with_name("2.jsonl").write_bytes(b"a" * (4 << 20))
    assert inputs.units(_config("*.jsonl"), "s", tmp_path, tmp_path / "cache")[0]["checksum"] != unit["checksum"]


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys, modalities.ingestion.inputs; print([m for m in ('torch', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
