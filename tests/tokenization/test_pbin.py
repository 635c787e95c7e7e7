"""Import of `.pbin`: a file written here from the layout, and files that must be refused."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modalities.cli import main
from modalities.errors import InputError
from modalities.tokenization.pbin import import_pbin
from modalities.tokens import Shard

KIND = {1: "B", 2: "H", 4: "I"}


def write_pbin(path: Path, documents: list[list[int]], *, width: int, index: Any = None, protocol: int = 4) -> None:
    """Write the documented layout; `index` replaces the index if given."""
    pieces = [struct.pack(f"<{len(d)}{KIND[width]}", *d) for d in documents]
    if index is None:
        index, offset = [], 0
        for piece in pieces:
            index.append((offset, len(piece)))
            offset += len(piece)
    data = b"".join(pieces)
    tail = index if isinstance(index, bytes) else pickle.dumps(index, protocol)
    path.write_bytes(struct.pack("<QI", len(data), width) + data + tail)


def read(path: Path) -> list[list[int]]:
    shard = Shard(path)
    shard.verify()
    return [shard.document(n).tolist() for n in range(shard.num_documents)]


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(("width", "top"), [(1, 255), (2, 65_535), (4, 2**31 - 1)])
def test_round_trip(tmp_path: Path, width: int, top: int, protocol: int) -> None:
    documents = [[1, 2, top], [], [0], [5] * 300]
    write_pbin(tmp_path / "a.pbin", documents, width=width, protocol=protocol)
    side = import_pbin(tmp_path / "a.pbin", tmp_path / "out", tokenizer="t")
    assert read(tmp_path / "out") == documents
    assert side.dtype == ("uint16" if width == 1 else "int32")
    assert side.tokenizer == "t"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pbin(tmp_path / "a.pbin", [[1, 2], [3]], width=2)
    assert main(["import-pbin", str(tmp_path / "a.pbin"), str(tmp_path / "shards/a.b")]) == 0
    assert read(tmp_path / "shards/a.b") == [[1, 2], [3]]
    assert "2 documents, 3 tokens (uint16)" in capsys.readouterr().out
    assert main(["import-pbin", str(tmp_path / "none.pbin"), str(tmp_path / "shards/none")]) == 2
    assert "none.pbin: expected a packed file" in capsys.readouterr().err
    assert not list((tmp_path / "shards").glob("none*"))


@settings(max_examples=30, deadline=None)
@given(documents=st.lists(st.lists(st.integers(0, 255), max_size=5), max_size=2100))
def test_any_documents(tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]) -> None:
    folder = tmp_path_factory.mktemp("pbin")
    write_pbin(folder / "a.pbin", documents, width=2)
    import_pbin(folder / "a.pbin", folder / "out")
    assert read(folder / "out") == documents


class Hostile:
    """Pickles to a call that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_does_nothing(tmp_path: Path, protocol: int) -> None:
    index = pickle.dumps([Hostile(tmp_path / "owned"), (0, 4)], protocol)
    write_pbin(tmp_path / "a.pbin", [[1, 2]], width=2, index=index)
    with pytest.raises(InputError, match="nothing was run"):
        import_pbin(tmp_path / "a.pbin", tmp_path / "out")
    assert not (tmp_path / "owned").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.pbin"]


@pytest.mark.parametrize(
    "index", [{}, [[0, 4]], [(0, 4, 1)], [("a", 4)], (0, 4), [(True, 4)], b"", b"\x80\x04]\x94(K\x00K", [(0, 2**70)]]
)
def test_another_index_is_refused(tmp_path: Path, index: Any) -> None:
    write_pbin(tmp_path / "a.pbin", [[1, 2]], width=2, index=index)
    with pytest.raises(InputError, match="list of pairs of integers"):
        import_pbin(tmp_path / "a.pbin", tmp_path / "out")


def test_a_merged_file_with_shifted_offsets_can_be_repaired(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [4] * 20, [5, 6]]
    write_pbin(tmp_path / "a.pbin", documents, width=2, index=[(0, 6), (6, 40), (46 - 12, 4)])
    with pytest.raises(InputError, match="expected document 2 at byte 46, got 34"):
        import_pbin(tmp_path / "a.pbin", tmp_path / "out")
    import_pbin(tmp_path / "a.pbin", tmp_path / "out", repair=True)
    assert read(tmp_path / "out") == documents


def test_killed_while_packing(tmp_path: Path) -> None:
    write_pbin(tmp_path / "a.pbin", [[1, 2]], width=2)
    raw = bytearray((tmp_path / "a.pbin").read_bytes())
    raw[:8] = bytes(8)
    (tmp_path / "a.pbin").write_bytes(raw)
    with pytest.raises(InputError):
        import_pbin(tmp_path / "a.pbin", tmp_path / "out")


@pytest.mark.parametrize("size", [0, 11, 14])
def test_truncated(tmp_path: Path, size: int) -> None:
    write_pbin(tmp_path / "a.pbin", [[1, 2]], width=2)
    os.truncate(tmp_path / "a.pbin", size)
    with pytest.raises(InputError, match="pack it again"):
        import_pbin(tmp_path / "a.pbin", tmp_path / "out")


def test_an_id_too_large_for_any_shard(tmp_path: Path) -> None:
    write_pbin(tmp_path / "a.pbin", [[2**31]], width=4)
    with pytest.raises(InputError, match="below 2"):
        import_pbin(tmp_path / "a.pbin", tmp_path / "out")
