"""The node `tokenization`: the kept documents of one unit, in row order, as one token shard.

`tokens.bin/.idx/.json` (see `modalities.tokens`), `rows.npy` (int64: document of the shard -> row of ingestion) and, if the
unit holds conversations, `tokens.mask`. Every kept document is in it, an empty one as its end-of-document token alone;
conversations that the chat template refuses are dropped by reason.
"""

import collections
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from modalities.documents import GroupReader, arrow_mask, read_groups
from modalities.errors import StoreError
from modalities.manifest import write_text
from modalities.tokenization.config import TokenizationSection
from modalities.tokenization.encoding import (
    Bounds,
    Encoded,
    MismatchError,
    Reference,
    Verifier,
    batches,
    open_encoder,
    surround,
    text_bytes,
)
from modalities.tokens import Array, ShardWriter, Sidecar, token_dtype
from modalities.work import Result, Upstream, Work, digest_of, sum_counts

if TYPE_CHECKING:
    from modalities.tokenization.chat import ChatEncoder

SHARD = "tokens"
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Documents:
    """Documents to encode, in order: the kept rows of one row group."""

    texts: pa.LargeStringArray
    rows: Array
    """int64: row of each document in the unit."""
    conversations: Mapping[int, list[Any]] = dataclasses.field(default_factory=dict)
    """Place within `texts` -> messages, for documents that are rendered by the chat template."""


@dataclasses.dataclass(slots=True)
class Tally:
    """What was written so far."""

    rows: list[Array] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, **numbers: int) -> None:
        """Add to the counts."""
        for name, number in numbers.items():
            self.counts[name] = self.counts.get(name, 0) + number


def run_unit(work: Work[TokenizationSection]) -> Result:
    """Write the shard of one unit. Inputs: ingestion, scores, filtering, deduplication, tokenizer."""
    tokenizer = work.inputs["tokenizer"]
    total = GroupReader(work.inputs["ingestion"].folder / "documents.parquet").num_rows
    return write_shard(work, lambda: _read(work.inputs, chat=bool(tokenizer.manifest.info.get("chat"))), total)


def _read(inputs: Mapping[str, Upstream], *, chat: bool) -> Iterator[Documents]:
    base = GroupReader(inputs["ingestion"].folder / "documents.parquet")
    for group in read_groups(inputs, masked=True):
        places = np.flatnonzero(group.keep)
        texts = group.texts if group.keep.all() else group.texts.filter(arrow_mask(group.keep))
        found: dict[int, list[Any]] = {}
        if chat:
            from modalities.tokenization.chat import messages_of

            metadata = base.group(group.index, ["metadata"]).column("metadata").to_pylist()
            messages = ((n, messages_of(metadata[place])) for n, place in enumerate(places.tolist()))
            found = {n: m for n, m in messages if m is not None}
        yield Documents(texts=texts, rows=places + group.first_row, conversations=found)


def write_shard(work: Work[TokenizationSection], read: Any, total_rows: int) -> Result:
    """Encode what `read()` yields into `work.folder`; `read` is called anew if gigatoken turns out to be wrong."""
    refused = work.cache / "tokenization" / f"{work.inputs['tokenizer'].manifest.info['tokenizer_hash']}.refused"
    mismatch = None
    try:
        return _write(work, read(), total_rows, allow_fast=not refused.exists())
    except MismatchError as error:
        mismatch = str(error)
        _log.warning("%s: %s; encoding it again, and all units from now on, with tokenizers", work.label, mismatch)
    refused.parent.mkdir(parents=True, exist_ok=True)
    write_text(refused, mismatch + "\n")
    result = _write(work, read(), total_rows, allow_fast=False)
    return dataclasses.replace(result, info={**result.info, "mismatch": mismatch})


def _write(
    work: Work[TokenizationSection], documents: Iterator[Documents], total_rows: int, *, allow_fast: bool
) -> Result:
    upstream, section = work.inputs["tokenizer"], work.section
    info, file = upstream.manifest.info, upstream.folder / "tokenizer.json"
    special = section.special_tokens_in_text == "special"
    encoder, why = open_encoder(file, special_in_text=special, allow_fast=allow_fast)
    share = section.verify_share if why is None else 0.0
    verifier = Verifier(lambda: Reference(file, special_in_text=special), share=share)
    bounds = Bounds(before=info["begin_of_document_id"], after=info["end_of_document_id"])
    chat = _open_chat(upstream.folder) if info.get("chat") else None
    tally = Tally(counts=dict.fromkeys(("documents_in", "text_bytes", "empty_documents", "special_in_text"), 0))
    done = 0
    with ShardWriter(
        work.folder / SHARD,
        dtype=token_dtype(info["vocab_size"]),
        tokenizer=info["tokenizer_hash"],
        end_of_document=bounds.after,
    ) as writer:
        for group in documents:
            first = 0
            for texts in batches(group.texts):
                encoded = encoder.encode(texts)
                verifier.check(texts, encoded, first=done + first)
                part = _slice(group, texts, first)
                _append(part, encoded, bounds=bounds, chat=chat, writer=writer, tally=tally)
                first += len(texts)
            done += first
            work.progress.update(int(group.rows[-1]) + 1 if len(group.rows) else done, total_rows)
        sidecar = writer.finish()
    engine = {"engine": encoder.name, "not_gigatoken": why, "verified_documents": verifier.num_documents}
    return _result(work.folder, sidecar, tally, engine, str(info["tokenizer_hash"]))


def _open_chat(folder: Path) -> "ChatEncoder":
    from modalities.tokenization.chat import ChatEncoder  # Jinja2 is loaded where there is a template

    return ChatEncoder(folder)


def _slice(group: Documents, texts: pa.LargeStringArray, first: int) -> Documents:
    last = first + len(texts)
    found = {n - first: m for n, m in group.conversations.items() if first <= n < last}
    return Documents(texts=texts, rows=group.rows[first:last], conversations=found)


def _append(
    documents: Documents,
    encoded: Encoded,
    *,
    bounds: Bounds,
    chat: "ChatEncoder | None",
    writer: ShardWriter,
    tally: Tally,
) -> None:
    """Write a batch of documents, conversations in place of their text, and count."""
    sizes = text_bytes(documents.texts)
    tally.add(
        documents_in=len(documents.texts),
        text_bytes=int(sizes.sum()),
        empty_documents=int(np.count_nonzero(sizes == 0)),
        special_in_text=int(np.count_nonzero(encoded.ids == bounds.after)),
    )
    if chat is not None and documents.conversations:
        _append_conversations(documents, encoded, bounds=bounds, chat=chat, writer=writer, tally=tally)
        return
    ids, lengths = surround(encoded, bounds, writer.dtype)
    writer.write(ids, lengths)
    tally.rows.append(documents.rows)


def _append_conversations(
    documents: Documents, encoded: Encoded, *, bounds: Bounds, chat: "ChatEncoder", writer: ShardWriter, tally: Tally
) -> None:
    """Write a batch that holds conversations, document by document."""
    from modalities.tokenization.chat import ConversationError

    keep = np.ones(len(documents.rows), bool)
    for place in range(len(documents.rows)):
        ids, mask = encoded.ids[encoded.offsets[place] : encoded.offsets[place + 1]], None
        if place in documents.conversations:
            try:
                ids, mask = chat.encode(documents.conversations[place])
            except ConversationError as error:
                _log.warning("row %d: dropped, its messages cannot be rendered: %s", documents.rows[place], error)
                tally.dropped["invalid_conversation"] = tally.dropped.get("invalid_conversation", 0) + 1
                keep[place] = False
                continue
            tally.add(conversations=1, learnt_tokens=int(mask.sum()))
        _write_one(ids, mask, bounds, writer)
    tally.rows.append(documents.rows[keep])


def _write_one(ids: Array, mask: Array | None, bounds: Bounds, writer: ShardWriter) -> None:
    """Write one document. Its end is learnt with a conversation only if the conversation ends in learnt text."""
    if mask is not None:
        # The template may write begin and end itself; they must not come twice.
        end = int(mask[-1]) if len(mask) else 0
        first = int(bounds.before is not None and len(ids) > 0 and int(ids[0]) == bounds.before)
        last = len(ids) - int(len(ids) > first and int(ids[-1]) == bounds.after)
        ids, mask = ids[first:last], mask[first:last]
        before = np.zeros(0 if bounds.before is None else 1, np.uint8)
        mask = np.concatenate([before, mask, np.array([end], np.uint8)])
    whole, lengths = surround(Encoded(ids, np.array([0, len(ids)])), bounds, writer.dtype)
    writer.write(whole, lengths, mask=mask)


def _result(folder: Path, sidecar: Sidecar, tally: Tally, engine: Mapping[str, Any], tokenizer: str) -> Result:
    rows = np.concatenate(tally.rows).astype(np.int64) if tally.rows else np.empty(0, np.int64)
    np.save(folder / "rows.npy", rows, allow_pickle=False)
    assert len(rows) == sidecar.documents, f"{len(rows)} rows, {sidecar.documents} documents"
    rows_hash = xxhash.xxh3_128_hexdigest(rows.data)
    return Result(
        content=digest_of(sidecar.bin_checksum, sidecar.idx_checksum, sidecar.mask_checksum, rows_hash),
        counts=tally.counts | {"documents_out": sidecar.documents, "tokens": sidecar.tokens},
        dropped=tally.dropped,
        info=dict(engine) | {"tokenizer_hash": tokenizer, "dtype": sidecar.dtype, "largest_id": sidecar.largest_id},
        numerics={"engine": engine["engine"]},
    )


def gather(work: Work[TokenizationSection]) -> Result:
    """Add up the units; raise `StoreError` unless one engine encoded all of them.

    A mismatch in one unit puts the ids of those that gigatoken encoded before in doubt. They are published, so they are
    not written anew here.
    """
    manifests = tuple(unit.manifest for unit in work.own_units)
    counts, dropped = sum_counts(manifests)
    engines = collections.Counter(str(manifest.info["engine"]) for manifest in manifests)
    mismatches = {m.label: m.info["mismatch"] for m in manifests if "mismatch" in m.info}
    if len(engines) > 1:
        raise StoreError(
            f"{work.label}: expected units of one engine, got {dict(engines)}: gigatoken found other ids than tokenizers "
            f"({'; '.join(f'{label}: {why}' for label, why in mismatches.items()) or 'in another source'}); run "
            "`modalities tokenization CONFIG --force`, which encodes all units with tokenizers"
        )
    if mismatches:
        _log.warning("%s: gigatoken found other ids than tokenizers in %s", work.label, ", ".join(mismatches))
    tokens = counts.get("tokens", 0)
    return Result(
        content=digest_of([m.content for m in manifests]),
        counts=counts,
        dropped=dropped,
        info={
            "engine": next(iter(engines), None),
            "mismatches": mismatches,
            "verified_documents": sum(m.info["verified_documents"] for m in manifests),
            "bytes_per_token": round(counts.get("text_bytes", 0) / tokens, 4) if tokens else None,
            "tokenizer_hash": manifests[0].info["tokenizer_hash"] if manifests else None,
            "largest_id": max((m.info["largest_id"] for m in manifests), default=-1),
        },
        numerics={"engine": next(iter(engines), None)},
    )
