"""Suite `heldout`: bits per byte of every held-out document, read from the checkpoint itself.

Writes `documents.parquet` (`DOCUMENT_SCORES`), in the order of the held-out documents.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from modalities.checkpoint import open_model
from modalities.documents import GROUP_ROWS, GroupWriter
from modalities.errors import DivergedError, InputError
from modalities.evaluation.bits import score_rows
from modalities.evaluation.compute import pick_device, record
from modalities.evaluation.config import EvaluationSection
from modalities.evaluation.texts import (
    Ids,
    Score,
    TextTokenizer,
    breakdown,
    check_vocabulary,
    open_tokenizer,
    read_documents,
)
from modalities.work import Result, Work, digest_of

SCHEMA = 1
DOCUMENT_SCORES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string()),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
    ]
)


def run_heldout(work: Work[EvaluationSection]) -> Result:
    """Score the held-out documents with the model of `pretraining`."""
    section, trained = work.section, work.inputs["pretraining"]
    assert section.heldout is not None
    device = pick_device(section.compute)
    tokenizer = open_tokenizer(work.inputs["tokenizer"])
    config, model = open_model(trained.folder)
    model.to(device)
    assert config.vocab_size is not None
    check_vocabulary(tokenizer, embeddings=config.vocab_size, what=work.label)
    documents = list(read_documents(work.inputs["heldout"], per_source=section.heldout.documents))
    if not documents:
        raise InputError(f"{work.label}: expected held-out documents, got none; raise the held-out share")
    window = section.heldout.window or _sequence_length(trained.manifest.info)
    stride = section.heldout.stride or max(1, window // 2)
    rows = [_row(tokenizer, ids) for ids in tokenizer.encode([document.text for document in documents])]
    try:
        bits = score_rows(
            model,
            rows,
            window=window,
            stride=stride,
            batch_tokens=section.compute.batch_tokens,
            vocabulary=config.vocab_size,
            device=device,
            progress=lambda done, total: work.progress.update(done, total, unit="windows"),
        )
    except DivergedError as error:
        raise DivergedError(
            f"{work.label}: step {section.step}: {error}; see the loss curve of this training"
        ) from None
    scores = [
        Score(document=document, num_tokens=len(row) - 1, bits=value)
        for document, row, value in zip(documents, rows, bits, strict=True)
    ]
    return _write(
        work, scores, {"window": window, "stride": stride, "unknown_tokens": _unknown(tokenizer, rows)}, device
    )


def _sequence_length(info: Mapping[str, Any]) -> int:
    length: int = info["sequence_length"]
    return length


def _row(tokenizer: TextTokenizer, ids: Ids) -> Ids:
    return np.concatenate(([tokenizer.boundary], ids))


def _unknown(tokenizer: TextTokenizer, rows: list[Ids]) -> int:
    if tokenizer.unknown is None:
        return 0
    return sum(int(np.count_nonzero(row[1:] == tokenizer.unknown)) for row in rows)


def _write(work: Work[EvaluationSection], scores: list[Score], settings: Mapping[str, Any], device: str) -> Result:
    with GroupWriter(work.folder / "documents.parquet", DOCUMENT_SCORES) as writer:
        for start in range(0, len(scores), GROUP_ROWS):
            writer.write(_table(scores[start : start + GROUP_ROWS]))
        content = digest_of(SCHEMA, "heldout", writer.content())
    figures = breakdown(scores)
    return Result(
        content=content,
        counts={name: figures[name] for name in ("documents", "bytes", "tokens")},
        info={"schema": SCHEMA, "suite": "heldout", "step": work.section.step, **settings, **figures},
        numerics=record(work.section.compute, device),
    )


def _table(scores: list[Score]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "id": [score.document.id for score in scores],
        "source": [score.document.source for score in scores],
        "language": [score.document.language for score in scores],
        "bytes": [score.document.num_bytes for score in scores],
        "tokens": [score.num_tokens for score in scores],
        "bits": [score.bits for score in scores],
    }
    return pa.table(columns, schema=DOCUMENT_SCORES)
