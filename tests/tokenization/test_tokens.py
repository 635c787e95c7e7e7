"""Token shards against a reader and a writer made here from the description of the format alone."""

import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modalities.errors import InputError, StoreError
from modalities.tokens import Shard, ShardWriter, merge, part, split, token_dtype

NUMPY_OF_CODE = {4: "<i4", 8: "<u2"}


def flat(lists: list[list[int]]) -> list[int]:
    """Join lists."""
    return list(itertools.chain.from_iterable(lists))


def format_bytes(documents: list[list[int]], code: int) -> tuple[bytes, bytes]:
    """`.bin` and `.idx` of documents, one sequence each, value by value."""
    kind, size = {4: ("i", 4), 8: ("H", 2)}[code]
    data = b"".join(struct.pack(f"<{len(d)}{kind}", *d) for d in documents)
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code)
    index += struct.pack("<Q", len(documents)) + struct.pack("<Q", len(documents) + 1)
    index += b"".join(struct.pack("<i", len(d)) for d in documents)
    starts = itertools.accumulate((len(d) * size for d in documents), initial=0)
    index += b"".join(struct.pack("<q", start) for start, _ in zip(starts, documents, strict=False))
    index += b"".join(struct.pack("<q", n) for n in range(len(documents) + 1))
    return data, index


def read_format(path: Path) -> list[list[int]]:
    """Documents of a pair of files, as Megatron-LM's reader finds them."""
    raw = part(path, ".idx").read_bytes()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, boundaries = struct.unpack_from("<QBQQ", raw, 9)
    assert version == 1
    lengths = np.frombuffer(raw, "<i4", sequences, 34)
    pointers = np.frombuffer(raw, "<i8", sequences, 34 + 4 * sequences)
    bounds = np.frombuffer(raw, "<i8", boundaries, 34 + 12 * sequences)
    assert len(raw) == 34 + 12 * sequences + 8 * boundaries
    data = part(path, ".bin").read_bytes()
    found = [np.frombuffer(data, NUMPY_OF_CODE[code], n, at).tolist() for n, at in zip(lengths, pointers, strict=True)]
    return [flat(found[a:b]) for a, b in itertools.pairwise(bounds)]


def write(path: Path, documents: list[list[int]], *, dtype: Any = "<u2", masks: Any = None, **more: Any) -> None:
    """Write documents with the writer under test, two at a time."""
    with ShardWriter(path, dtype=np.dtype(dtype), **more) as writer:
        for first in range(0, len(documents), 2):
            chosen = documents[first : first + 2]
            mask = None if masks is None else np.array(flat(masks[first : first + 2]), np.uint8)
            writer.write(np.array(flat(chosen), np.int64), np.array([len(d) for d in chosen], np.int64), mask=mask)
        writer.finish()


def read(path: Path) -> list[list[int]]:
    """Read documents with the reader under test."""
    shard = Shard(path)
    shard.verify()
    return [shard.document(n).tolist() for n in range(shard.num_documents)]


@pytest.mark.parametrize(("code", "dtype", "top"), [(8, "<u2", 65_499), (4, "<i4", 2**31 - 1)])
def test_files_are_byte_for_byte_the_format(tmp_path: Path, code: int, dtype: str, top: int) -> None:
    documents = [[1, 2, 3], [], [top], [0, 0], [top, 5]]
    write(tmp_path / "a.b", documents, dtype=dtype)
    data, index = format_bytes(documents, code)
    assert (tmp_path / "a.b.bin").read_bytes() == data
    assert (tmp_path / "a.b.idx").read_bytes() == index
    assert read_format(tmp_path / "a.b") == read(tmp_path / "a.b") == documents


def test_reads_a_foreign_shard_with_several_sequences_per_document(tmp_path: Path) -> None:
    data = np.arange(10, dtype="<u2").tobytes()
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 3, 3)
    index += struct.pack("<3i", 4, 1, 5) + struct.pack("<3q", 0, 8, 10) + struct.pack("<3q", 0, 2, 3)
    (tmp_path / "f.bin").write_bytes(data)
    (tmp_path / "f.idx").write_bytes(index)
    shard = Shard(tmp_path / "f")
    assert [shard.document(n).tolist() for n in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert shard.sidecar is None
    with pytest.raises(StoreError, match="no checksum"):
        shard.verify()


@pytest.mark.parametrize(
    ("ids", "name"),
    [(1, "uint16"), (65_500, "uint16"), (65_501, "int32"), (65_535, "int32"), (65_536, "int32"), (262_145, "int32")],
)
def test_token_width(tmp_path: Path, ids: int, name: str) -> None:
    assert token_dtype(ids).name == name
    documents = [[0, ids - 1], [ids - 1]]
    write(tmp_path / "t", documents, dtype=token_dtype(ids))
    assert read(tmp_path / "t") == documents == read_format(tmp_path / "t")
    assert Shard(tmp_path / "t").sidecar.largest_id == ids - 1  # type: ignore[union-attr]


@pytest.mark.parametrize("ids", [0, 2**31 + 1])
def test_vocabularies_without_a_width(ids: int) -> None:
    with pytest.raises(InputError, match="expected between"):
        token_dtype(ids)


@pytest.mark.parametrize("bad", [65_536, -1])
def test_an_id_that_does_not_fit_is_refused(tmp_path: Path, bad: int) -> None:
    with pytest.raises(InputError, match="wider type"):
        write(tmp_path / "t", [[1, bad]])
    assert list(tmp_path.iterdir()) == []


def test_sidecar(tmp_path: Path) -> None:
    write(tmp_path / "t", [[5, 9], []], tokenizer="abc", end_of_document=9)
    side = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert (side["documents"], side["tokens"], side["dtype"]) == (2, 2, "uint16")
    assert (side["tokenizer"], side["end_of_document"], side["largest_id"]) == ("abc", 9, 9)
    assert len(side["bin_checksum"]) == 32


# --- damage ----------------------------------------------------------------------------------------------------------


def test_truncated_bin(tmp_path: Path) -> None:
    write(tmp_path / "t", [[1, 2, 3], [4]])
    os.truncate(tmp_path / "t.bin", 6)
    with pytest.raises(StoreError, match=r"t\.bin: expected 8 bytes .* got 6: it is truncated"):
        Shard(tmp_path / "t")


def test_missing_bin(tmp_path: Path) -> None:
    write(tmp_path / "t", [[1, 2, 3], [4]])
    (tmp_path / "t.bin").unlink()
    with pytest.raises(StoreError, match=r"t\.bin: missing"):
        Shard(tmp_path / "t")


@pytest.mark.parametrize("keep_sidecar", [True, False])
def test_index_of_another_shard(tmp_path: Path, keep_sidecar: bool) -> None:
    write(tmp_path / "a", [[1, 2, 3], [4]])
    write(tmp_path / "b", [[1, 2], [3], [4, 5, 6]])
    (tmp_path / "b.idx").replace(tmp_path / "a.idx")
    if not keep_sidecar:
        (tmp_path / "a.json").unlink()
    with pytest.raises(StoreError, match=r"sidecar" if keep_sidecar else r"expected 12 bytes as its \.idx says, got 8"):
        Shard(tmp_path / "a")


def test_index_of_another_shard_of_equal_size(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2, 3], [4]])
    write(tmp_path / "b", [[1, 2], [3, 4]])
    (tmp_path / "b.idx").replace(tmp_path / "a.idx")
    with pytest.raises(StoreError, match="as in its sidecar"):
        Shard(tmp_path / "a")


def test_flipped_bit(tmp_path: Path) -> None:
    write(tmp_path / "t", [[1, 2, 3], [4]])
    data = bytearray((tmp_path / "t.bin").read_bytes())
    data[2] ^= 1
    (tmp_path / "t.bin").write_bytes(data)
    with pytest.raises(StoreError, match="xxh3_128"):
        Shard(tmp_path / "t").verify()


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, b"X", "not a Megatron index"),
        (9, b"\x02", "version 1"),
        (17, b"\x06", "type 6"),
        (17, b"\x04", "4-byte tokens"),
        (18, b"\x07", "expected .* bytes for 7 sequences"),
        (34, b"\xff\xff\xff\xff", "lengths of 0 or more"),
        (42, b"\x02", "2-byte tokens one after another"),
        (58, b"\x01", "boundaries that rise from 0"),
    ],
)
def test_damaged_index(tmp_path: Path, offset: int, value: bytes, message: str) -> None:
    write(tmp_path / "t", [[1, 2, 3], [4]])
    (tmp_path / "t.json").unlink()
    raw = bytearray((tmp_path / "t.idx").read_bytes())
    raw[offset : offset + len(value)] = value
    (tmp_path / "t.idx").write_bytes(raw)
    with pytest.raises(StoreError, match=message):
        Shard(tmp_path / "t")


def test_mask_of_another_length(tmp_path: Path) -> None:
    write(tmp_path / "t", [[1, 2, 3], [4]], masks=[[0, 1, 1], [0]])
    os.truncate(tmp_path / "t.mask", 3)
    with pytest.raises(StoreError, match=r"t\.mask: expected 4 bytes"):
        Shard(tmp_path / "t")
    (tmp_path / "t.mask").unlink()
    with pytest.raises(StoreError, match="a mask as in its sidecar"):
        Shard(tmp_path / "t")


def test_kill_while_writing_leaves_nothing_that_counts(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np, pathlib\n"
        "from modalities.tokens import ShardWriter\n"
        "writer = ShardWriter(pathlib.Path(sys.argv[1]), dtype=np.dtype('<u2'))\n"
        "while True:\n"
        "    writer.write(np.arange(1000), np.array([1000]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "t")], cwd=Path(__file__).parents[2])
    partial = tmp_path / "t.bin.partial"
    limit = time.monotonic() + 30
    while not (partial.exists() and partial.stat().st_size > 0) and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["t.bin.partial"]
    with pytest.raises(StoreError, match="missing"):
        Shard(tmp_path / "t")
    write(tmp_path / "t", [[1]])
    assert read(tmp_path / "t") == [[1]]
    assert not list(tmp_path.glob("*.partial"))


# --- merge and split -------------------------------------------------------------------------------------------------


def test_merge_of_different_widths_takes_the_wider(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1], []])
    write(tmp_path / "b", [[70_000]], dtype="<i4")
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert read(tmp_path / "c") == [[1], [], [70_000]]


def test_merge_keeps_masks(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1, 2]])
    write(tmp_path / "b", [[3, 4, 5]], masks=[[0, 1, 0]])
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert Shard(tmp_path / "c").mask.tolist() == [1, 1, 0, 1, 0]  # type: ignore[union-attr]


def test_merge_refuses_two_tokenizers(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1]], tokenizer="one")
    write(tmp_path / "b", [[1]], tokenizer="two")
    with pytest.raises(StoreError, match="one tokenizer"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")


def test_split_counts_must_add_up(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1], [2]])
    with pytest.raises(InputError, match="add up to 2"):
        split(tmp_path / "a", [tmp_path / "b"], documents=[1])


Documents = st.lists(st.lists(st.integers(0, 65_499), max_size=6), max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=Documents, data=st.data())
def test_shard_merge_split_shuffle_keep_every_document(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("property")
    numbers = itertools.count()
    masks = [[token % 2 for token in document] for document in documents]
    write(folder / "start", documents, masks=masks if data.draw(st.booleans()) else None)
    has_mask = (folder / "start.mask").exists()
    shards = [(folder / "start", list(range(len(documents))))]
    for step in data.draw(st.lists(st.sampled_from(["merge", "split", "shuffle"]), max_size=6)):
        if step == "shuffle":
            shards = data.draw(st.permutations(shards))
        elif step == "merge":
            out = folder / f"s{next(numbers)}"
            merge([path for path, _ in shards], out)
            shards = [(out, [n for _, held in shards for n in held])]
        else:
            path, held = shards.pop()
            cut = data.draw(st.integers(0, len(held)))
            outs = [folder / f"s{next(numbers)}", folder / f"s{next(numbers)}"]
            split(path, outs, documents=[cut, len(held) - cut])
            shards += [(outs[0], held[:cut]), (outs[1], held[cut:])]
    for path, held in shards:
        assert read(path) == [documents[n] for n in held] == read_format(path)
        shard = Shard(path)
        if has_mask and shard.num_tokens:
            assert [shard.document_mask(k).tolist() for k in range(len(held))] == [masks[n] for n in held]  # type: ignore[union-attr]
