"""The order of training: which sequence is read at slot n, as a function of index, data seed and n alone.

    slot n  --schedule-->  source s, ordinal k  --permutation of (data seed, s, epoch)-->  sequence of s

Schedule: whole-number weights, split along a binary tree. Of the first m slots that reach a node, the left side gets
`round(m * left / (left + right))` and the right side the rest, so counts up to any n take integer arithmetic only, never
decrease, and add up to n. With weights 3:1 the slots read A B A A, A B A A, ... (B: 0.25 rounds to 0, 0.5 to 1, 0.75 to 1).
A source is never further than `Schedule.deviation` sequences from its exact share: at most 1 for up to four sources,
under 1.7 for any number (each rounding is off by at most 1/2 and is passed down in proportion to the weights; the tree is
Huffman's or a balanced one, whichever is better, and in Huffman's weights grow like Fibonacci numbers towards the root).

Ordinals count up over all phases, so that a change of mixture goes on in each source where the last phase stopped.

Permutation: a keyed Feistel network over the smallest rectangle that holds all sequences; indices that fall outside walk on
(fewer than one in `sqrt(size)`). No list in memory, any n at random; 512 slots take about 0.3 ms.
"""

import dataclasses
import functools
import hashlib
import heapq
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Tree = int | tuple["Tree", "Tree"]

MAX_TOTAL = 2**30
"""Largest sum of whole-number weights: `2 * m * w` then stays below 2^63 after reducing m by the total."""
_ROUNDS = 6
"""Four make a Feistel network with random rounds indistinguishable from random; two more for small sources."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A phase in sequences: whole-number weights per source, and how many slots it lasts (None: for ever)."""

    weights: tuple[int, ...]
    slots: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the order depends on besides the data seed."""

    sources: tuple[str, ...]
    sizes: tuple[int, ...]
    """Sequences of each source."""
    stretches: tuple[Stretch, ...]

    def locate(self, slots: Ints) -> tuple[Ints, Ints]:
        """Return source number and ordinal (how many sequences of that source came before) of each slot."""
        sources, ordinals = np.empty_like(slots), np.empty_like(slots)
        for first, last, base, schedule in _spans(self):
            inside = (slots >= first) if last is None else (slots >= first) & (slots < last)
            if inside.any():
                which, ordinal = schedule.locate(slots[inside] - first)
                sources[inside], ordinals[inside] = which, ordinal + base[which]
        end = self.num_slots
        if len(slots) and (int(slots.min()) < 0 or (end is not None and int(slots.max()) >= end)):
            raise IndexError(f"slots {slots.min()} to {slots.max()} of {end}")
        return sources, ordinals

    def sequences(self, slots: Ints, *, data_seed: int) -> tuple[Ints, Ints, Ints]:
        """Return source number, epoch and number of the sequence within its source, for each slot."""
        sources, ordinals = self.locate(slots)
        epochs, within = np.divmod(ordinals, np.asarray(self.sizes, np.int64)[sources])
        # All sources and epochs at once: each slot brings the keys and the size of its permutation.
        num_sources = len(self.sources)
        pairs, pair_of_slot = np.unique(epochs * num_sources + sources, return_inverse=True)
        keys = [
            round_keys(data_seed=data_seed, source=self.sources[pair % num_sources], epoch=pair // num_sources)
            for pair in pairs.tolist()
        ]
        sizes = np.asarray(self.sizes, np.int64)[pairs % num_sources]
        numbers = permute(within, sizes=sizes[pair_of_slot], keys=np.stack(keys)[pair_of_slot])
        return sources, epochs, numbers

    def counts(self, slots: int) -> Ints:
        """Return how many of the first `slots` slots go to each source."""
        total = np.zeros(len(self.sources), np.int64)
        for first, last, base, schedule in _spans(self):
            if slots > first:
                total = base + schedule.counts((slots if last is None else min(slots, last)) - first)
        return total

    @property
    def num_slots(self) -> int | None:
        """How many slots the phases have together; None: no end."""
        lengths = [stretch.slots for stretch in self.stretches]
        return None if lengths[-1] is None else sum(slots for slots in lengths if slots is not None)


@functools.lru_cache(maxsize=16)
def _spans(order: Order) -> tuple[tuple[int, int | None, Ints, "Schedule"], ...]:
    """Return first slot, end, ordinals at the start, and schedule of each phase."""
    spans: list[tuple[int, int | None, Ints, Schedule]] = []
    first, base = 0, np.zeros(len(order.sources), np.int64)
    for stretch in order.stretches:
        schedule = Schedule.of(stretch.weights)
        last = None if stretch.slots is None else first + stretch.slots
        spans.append((first, last, base, schedule))
        if last is None or stretch.slots is None:
            break
        base = base + schedule.counts(stretch.slots)
        first = last
    return tuple(spans)


# --- which source gets a slot ----------------------------------------------------------------------------------------


def whole_weights(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Return whole numbers in the ratio of the shares; exact if their sum can be at most `MAX_TOTAL`.

    Otherwise they are rounded to that total, which moves a share by under 1e-9; no positive share becomes 0.
    """
    total = sum(shares.values(), Fraction(0))
    scale = math.lcm(*((share / total).denominator for share in shares.values()))
    whole = {name: int(share / total * scale) for name, share in shares.items()}
    common = math.gcd(*whole.values())
    whole = {name: number // common for name, number in whole.items()}
    if (size := sum(whole.values())) <= MAX_TOTAL:
        return whole
    room = MAX_TOTAL - len(whole)
    return {name: max(1, number * room // size) if number > 0 else 0 for name, number in whole.items()}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """One mixture: a binary tree over the sources with a weight above 0."""

    weights: tuple[int, ...]
    tree: Tree

    @classmethod
    def of(cls, weights: tuple[int, ...]) -> "Schedule":
        """Choose the tree with the smaller deviation."""
        if not 0 < sum(weights) <= MAX_TOTAL or min(weights) < 0:
            raise ValueError(f"weights {weights} must be 0 or more and add up to 1 ... {MAX_TOTAL}")
        used = sorted((index for index, weight in enumerate(weights) if weight > 0), key=lambda i: (-weights[i], i))
        trees = (_huffman(used, weights), _halves(used))
        return cls(weights=weights, tree=min(trees, key=lambda tree: _deviation(tree, weights)))

    @property
    def deviation(self) -> float:
        """Most sequences by which a source can be ahead of or behind its exact share, at any slot."""
        return float(_deviation(self.tree, self.weights))

    def locate(self, slots: Ints) -> tuple[Ints, Ints]:
        """Return source number and ordinal within this schedule, for each slot."""
        sources, ordinals = np.empty_like(slots), np.empty_like(slots)
        pending: list[tuple[Tree, Ints, Ints]] = [(self.tree, np.arange(len(slots)), slots)]
        while pending:
            node, at, local = pending.pop()
            if isinstance(node, int):
                sources[at], ordinals[at] = node, local
                continue
            left, total = _weight(node[0], self.weights), _weight(node, self.weights)
            before = _share(local, left, total)
            goes_left = _share(local + 1, left, total) > before
            pending.append((node[0], at[goes_left], before[goes_left]))
            pending.append((node[1], at[~goes_left], (local - before)[~goes_left]))
        return sources, ordinals

    def counts(self, slots: int) -> Ints:
        """Return how many of the first `slots` slots go to each source."""
        total = np.zeros(len(self.weights), np.int64)
        pending: list[tuple[Tree, int]] = [(self.tree, slots)]
        while pending:
            node, local = pending.pop()
            if isinstance(node, int):
                total[node] = local
                continue
            here = np.asarray([local], np.int64)
            left = int(_share(here, _weight(node[0], self.weights), _weight(node, self.weights))[0])
            pending += [(node[0], left), (node[1], local - left)]
        return total


def _share(count: Ints, part: int, total: int) -> Ints:
    """Return `round(count * part / total)`, halves up, without overflow for any count below 2^62."""
    rounds, rest = np.divmod(count, total)
    shares: Ints = rounds * part + (2 * rest * part + total) // (2 * total)
    return shares


def _weight(tree: Tree, weights: tuple[int, ...]) -> int:
    return weights[tree] if isinstance(tree, int) else _weight(tree[0], weights) + _weight(tree[1], weights)


def _huffman(used: list[int], weights: tuple[int, ...]) -> Tree:
    heap: list[tuple[int, int, Tree]] = [(weights[index], order, index) for order, index in enumerate(used)]
    heapq.heapify(heap)
    made = len(heap)
    while len(heap) > 1:
        (one, _, first), (two, _, second) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (one + two, made, (first, second)))
        made += 1
    return heap[0][2]


def _halves(used: list[int]) -> Tree:
    """Balanced tree: the heaviest goes with the lightest of each four, so that four sources make two pairs."""
    if len(used) == 1:
        return used[0]
    outer = [index for order, index in enumerate(used) if order % 4 in (0, 3)]
    inner = [index for order, index in enumerate(used) if order % 4 in (1, 2)]
    return _halves(outer), _halves(inner)


def _deviation(tree: Tree, weights: tuple[int, ...], above: Fraction | None = None) -> Fraction:
    """Half of (1 + the sum of leaf weight over node weight for all nodes between root and leaf), at the worst leaf."""
    if isinstance(tree, int):
        return Fraction(0) if above is None else (1 + weights[tree] * above) / 2
    inner = Fraction(0) if above is None else above + Fraction(1, _weight(tree, weights))
    return max(_deviation(child, weights, inner) for child in tree)


# --- which sequence of the source ------------------------------------------------------------------------------------


def round_keys(*, data_seed: int, source: str, epoch: int) -> Words:
    """Return the keys of one permutation: each source and epoch has its own, whatever the other sources are."""
    name = f"{data_seed}\0{epoch}\0{source}".encode("utf-8", "surrogatepass")
    return np.frombuffer(hashlib.blake2b(name, digest_size=8 * _ROUNDS).digest(), "<u8").astype(np.uint64)


def permute(numbers: Ints, *, sizes: Ints, keys: Words) -> Ints:
    """Map each number below its size one to one onto numbers below that size; `keys` [N, 6] choose the permutation."""
    size = sizes.astype(np.uint64)
    columns = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    rows = (size + columns - np.uint64(1)) // columns
    result = numbers.astype(np.uint64)
    walking = np.arange(len(result))
    while len(walking):
        result[walking] = _feistel(result[walking], rows=rows[walking], columns=columns[walking], keys=keys[walking])
        walking = walking[result[walking] >= size[walking]]
    return result.astype(np.int64)


def _feistel(numbers: Words, *, rows: Words, columns: Words, keys: Words) -> Words:
    row, column = np.divmod(numbers, columns)
    for at in range(0, _ROUNDS, 2):
        row = (row + _mix(column ^ keys[:, at])) % rows
        column = (column + _mix(row ^ keys[:, at + 1])) % columns
    return row * columns + column


def _mix(words: Words) -> Words:
    """Scramble words into 63 bits, so that a sum cannot overflow: the finalizer of SplitMix64 (Steele et al., 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (words ^ (words >> np.uint64(31))) >> np.uint64(1)
