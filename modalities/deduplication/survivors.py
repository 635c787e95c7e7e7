"""From union-find roots to clusters, their survivors, and the list of the largest."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from modalities.deduplication import signatures
from modalities.deduplication.kernels import I64, U64
from modalities.deduplication.nodes import HeldOut, Part
from modalities.documents import GroupReader

CLUSTERS_AT_ONCE = 1_000_000
"""Survivors are chosen for so many clusters at a time: one id of each is in memory, about 200 MB."""
MEMBERS_LISTED = 8
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Clusters:
    """C clusters of M documents of the sources; documents that are alike to no other are in none."""

    members: I64
    """(M,) nodes, ascending, held-out ones left out."""
    cluster: I64
    """(M,) cluster of each."""
    equal: Bools
    """(M,) whether its text equals that of the survivor, or of a held-out document in its cluster."""
    roots: I64
    """(C,) smallest node of each cluster; below the number of held-out nodes if one is held out."""
    survivors: I64
    """(C,) node that stays, or -1 where a held-out document wins."""
    held_out: Bools
    """(C,) whether a held-out document wins."""
    sizes: I64
    """(C,) number of members."""
    names: U64
    """(C,) number of the cluster for other stages."""

    def by_part(self, parts: Sequence[Part]) -> Iterator[tuple[Part, I64]]:
        """Yield every unit with the positions in `members` of its documents."""
        for part in parts:
            start, stop = np.searchsorted(self.members, [part.first, part.first + len(part.rows)])
            yield part, np.arange(start, stop)


def choose(
    parts: Sequence[Part],
    *,
    exact: Any,
    near: Any,
    num_heldout: int,
    ranks: Mapping[str, int],
    hashes: U64,
    salt: np.uint64,
) -> Clusters:
    """Return the clusters, given each node's root by equal text (`exact`) and by all that joins (`near`).

    Nodes below `num_heldout` are held-out documents. `ranks` orders sources, `hashes` are (nodes, 2) text hashes.
    """
    members = _in_clusters(near, num_heldout)
    roots, cluster = np.unique(near[members], return_inverse=True)
    sizes = np.bincount(cluster, minlength=len(roots))
    held_out = roots < num_heldout
    found = Clusters(
        members=members,
        cluster=cluster,
        equal=np.zeros(len(members), np.bool_),
        roots=roots.astype(np.int64),
        survivors=np.full(len(roots), -1, np.int64),
        held_out=held_out,
        sizes=sizes,
        names=np.zeros(len(roots), np.uint64),
    )
    for start in range(0, len(roots), CLUSTERS_AT_ONCE):
        _choose_some(found, parts, ranks=ranks, start=start, stop=min(len(roots), start + CLUSTERS_AT_ONCE))
    winner = np.where(held_out, found.roots, found.survivors)
    found.names[:] = hashes[winner, 0] ^ salt
    own = exact[members]
    found.equal[:] = np.where(held_out[cluster], own < num_heldout, own == exact[winner[cluster]])
    return found


def _in_clusters(near: Any, num_heldout: int) -> I64:
    """Return the nodes, held-out ones left out, that are joined to another node."""
    others = np.flatnonzero(near != np.arange(len(near), dtype=near.dtype))
    joined = np.zeros(len(near), np.bool_)
    joined[others] = True
    joined[near[others]] = True
    joined[:num_heldout] = False
    return np.flatnonzero(joined)


def _choose_some(found: Clusters, parts: Sequence[Part], *, ranks: Mapping[str, int], start: int, stop: int) -> None:
    """Choose the survivors of clusters `start` to `stop`: first by rank of source, then by id, then by node."""
    best: list[tuple[int, str, int] | None] = [None] * (stop - start)
    for part, positions in found.by_part(parts):
        cluster = found.cluster[positions]
        open_ones = positions[(cluster >= start) & (cluster < stop) & ~found.held_out[cluster]]
        if not len(open_ones):
            continue
        nodes, rank = found.members[open_ones], ranks[part.source]
        ids = _read(part, nodes, "id")
        for c, id, node in zip((found.cluster[open_ones] - start).tolist(), ids, nodes.tolist(), strict=True):
            candidate, known = (rank, id, node), best[c]
            if known is None or candidate < known:
                best[c] = candidate
    for c, chosen in enumerate(best):
        if chosen is not None:
            found.survivors[start + c] = chosen[2]


def _read(part: Part, nodes: I64, column: str) -> list[Any]:
    """Return values of a column of `signatures.parquet` for ascending nodes of a unit."""
    if not len(nodes):
        return []
    rows, first = part.rows[nodes - part.first], 0
    values: list[Any] = []
    reader = GroupReader(part.upstream.folder / signatures.FILE)
    for table in reader.groups([column]):
        start, stop = np.searchsorted(rows, [first, first + table.num_rows])
        values += table.column(column).take(pa.array(rows[start:stop] - first)).to_pylist()
        first += table.num_rows
    return values


def largest(found: Clusters, parts: Sequence[Part], heldout: HeldOut, *, number: int) -> list[dict[str, Any]]:
    """Describe the largest clusters of two or more documents, with ids and excerpts of their first members."""
    order = np.lexsort((found.names, -found.sizes))
    chosen = [c for c in order[:number].tolist() if found.sizes[c] > 1]
    entries: dict[int, dict[str, Any]] = {}
    for c in chosen:
        documents = []
        if found.held_out[c]:
            which = int(found.roots[c]) % len(heldout.ids)
            excerpt = (heldout.texts[which].as_py() or "")[: signatures.EXCERPT_CHARACTERS]
            documents.append(_document(heldout.sources[which], heldout.ids[which], excerpt, "held_out"))
        size, name = int(found.sizes[c]), f"{int(found.names[c]):016x}"
        entries[c] = {"cluster": name, "size": size, "held_out": bool(found.held_out[c]), "documents": documents}
    listed = np.isin(found.cluster, list(entries))
    survives = found.survivors[found.cluster] == found.members
    for part, positions in found.by_part(parts):
        room = {c: MEMBERS_LISTED - len(entry["documents"]) for c, entry in entries.items()}
        wanted = []
        for p in positions[listed[positions]].tolist():
            room[int(found.cluster[p])] -= 1
            if survives[p] or room[int(found.cluster[p])] >= 0:
                wanted.append(p)
        nodes = found.members[wanted]
        for p, id, excerpt in zip(wanted, _read(part, nodes, "id"), _read(part, nodes, "excerpt"), strict=True):
            state = "kept" if survives[p] else "dropped"
            entries[int(found.cluster[p])]["documents"].append(_document(part.source, id, excerpt, state))
    return list(entries.values())


def _document(source: str, id: str, excerpt: str, state: str) -> dict[str, str]:
    return {"source": source, "id": id, "excerpt": excerpt, "state": state}
