"""Bits of token sequences under a causal model, long ones through a sliding window.

A document t1..tn is the row [boundary, t1, .., tn]. The first window sees up to `window` inputs and scores all of their
targets; each further one starts `stride` later and scores only what no window before it has scored, so that every token is
scored once, with at least `window - stride` tokens before it. With window 4 and stride 2, and a row of 8 tokens b1234567:

    window 1: sees b123, scores 1234;   window 2: sees 2345, scores 56;   window 3: sees 456, scores 7

Cost: n / stride windows per document. Memory: `tokens_per_pass` x vocabulary float32 logits, twice.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modalities.errors import DivergedError

if TYPE_CHECKING:
    import torch

Ids = np.ndarray[Any, np.dtype[np.int64]]
MOST_LOGITS = 64 << 20
"""Logits of one forward pass: 256 MiB in float32."""
LENGTH_STEP = 64
"""Passes are padded to a multiple of this: few shapes, so that tables and kernels made per shape stay few."""


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a row: inputs [start, stop), targets one further; those from `first` on are scored."""

    row: int
    start: int
    stop: int
    first: int


def windows(rows: Sequence[Ids], *, window: int, stride: int) -> list[Window]:
    """Cut rows (boundary token first) into windows that score every token but the first exactly once."""
    cut = []
    for number, row in enumerate(rows):
        targets = len(row) - 1
        scored = start = 0
        while scored < targets:
            stop = min(start + window, targets)
            cut.append(Window(number, start, stop, scored))
            scored, start = stop, start + stride
    return cut


def score_rows(
    logits: "Callable[[torch.Tensor], torch.Tensor]",
    rows: Sequence[Ids],
    *,
    window: int,
    stride: int,
    batch_tokens: int,
    vocabulary: int,
    device: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """Return the bits of each row. `logits` maps ids (B, T) to (B, T, vocabulary).

    Raises `DivergedError`, with the number of the row, for logits that are not finite.
    """
    cut = windows(rows, window=window, stride=stride)
    cut.sort(key=lambda w: (w.start - w.stop, w.row, w.start))  # longest first: little padding, memory peak at once
    tokens_per_pass = min(batch_tokens, max(1, MOST_LOGITS // vocabulary))
    bits = [0.0] * len(rows)
    pieces: dict[tuple[int, int], float] = {}
    done = 0
    for batch in _batches(cut, tokens_per_pass):
        length = min(window, -(-(batch[0].stop - batch[0].start) // LENGTH_STEP) * LENGTH_STEP)
        for item, value in zip(batch, _score(logits, rows, batch, length, device), strict=True):
            if not np.isfinite(value):
                raise DivergedError(f"row {item.row}: expected finite logits, got {value}")
            pieces[item.row, item.start] = value
        done += len(batch)
        progress(done, len(cut))
    for row, start in sorted(pieces):  # a fixed order of additions, whatever the batches were
        bits[row] += pieces[row, start]
    return bits


def _batches(cut: Sequence[Window], tokens_per_pass: int) -> Iterator[list[Window]]:
    begin = 0
    while begin < len(cut):
        longest = cut[begin].stop - cut[begin].start
        end = begin + max(1, tokens_per_pass // longest)
        yield list(cut[begin:end])
        begin = end


def _score(
    logits: "Callable[[torch.Tensor], torch.Tensor]",
    rows: Sequence[Ids],
    batch: Sequence[Window],
    length: int,
    device: str,
) -> list[float]:
    import torch

    inputs = np.zeros((len(batch), length), np.int64)  # padding on the right is invisible to a causal model
    targets = np.zeros((len(batch), length), np.int64)
    scored = np.zeros((len(batch), length), np.bool_)
    for number, item in enumerate(batch):
        size = item.stop - item.start
        inputs[number, :size] = rows[item.row][item.start : item.stop]
        targets[number, :size] = rows[item.row][item.start + 1 : item.stop + 1]
        scored[number, item.first - item.start : size] = True
    with torch.inference_mode():
        output = logits(torch.from_numpy(inputs).to(device)).float()
        gold = output.gather(-1, torch.from_numpy(targets).to(device)[..., None])[..., 0]
        nats = (torch.logsumexp(output, -1) - gold).double().cpu().numpy()
    # a row's own sum, not one over the batch; where() keeps what stands under the padding out, finite or not
    total = np.where(scored, nats, 0.0).sum(axis=1) / np.log(2)
    return [float(value) for value in total]
