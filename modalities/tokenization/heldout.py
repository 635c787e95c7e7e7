"""The node `tokenization.heldout`: every held-out document, in row order, as one token shard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from modalities.documents import GroupReader
from modalities.tokenization.config import HeldoutTokensSection
from modalities.tokenization.stage import SHARD, Documents, write_shard
from modalities.tokens import Shard
from modalities.work import Result, Work


def run(work: Work[HeldoutTokensSection]) -> Result:
    """Write the shard. Inputs: heldout (documents.parquet), tokenizer. Document n of the shard is row n."""
    path = work.inputs["heldout"].folder / "documents.parquet"
    result = write_shard(work, lambda: _read(path), GroupReader(path).num_rows)
    sizes = _by_source(path, np.diff(Shard(work.folder / SHARD).offsets))
    return Result(
        content=result.content,
        counts=result.counts,
        dropped=result.dropped,
        info={**result.info, "by_source": sizes},
        numerics=result.numerics,
    )


def _read(path: Path) -> Iterator[Documents]:
    first = 0
    for table in GroupReader(path).groups(["text"]):
        column = table.column("text").cast(pa.large_string()).combine_chunks()
        texts = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        yield Documents(texts=texts, rows=np.arange(first, first + len(texts)))
        first += len(texts)


def _by_source(path: Path, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, dict[str, dict[str, int]]]:
    """Return documents, tokens and text bytes by source and language."""
    sizes: dict[str, dict[str, dict[str, int]]] = {}
    first = 0
    for table in GroupReader(path).groups(["source", "language", "text_bytes"]):
        columns = (table.column(name).to_pylist() for name in ("source", "language", "text_bytes"))
        tokens = lengths[first : first + table.num_rows].tolist()
        first += table.num_rows
        for source, language, text_bytes, num_tokens in zip(*columns, tokens, strict=True):
            cell = sizes.setdefault(source, {}).setdefault(
                language or "unknown", {"documents": 0, "tokens": 0, "text_bytes": 0}
            )
            cell["documents"] += 1
            cell["tokens"] += num_tokens
            cell["text_bytes"] += text_bytes
    return sizes
