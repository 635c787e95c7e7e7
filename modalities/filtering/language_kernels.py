# Compiled loops: numba infers types, takes arguments by position, and pays for every call between long loops.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# ruff: noqa: PLR0912
"""Compiled loops of language identification. Arithmetic in single precision and in fastText's order, so that scores agree."""

import numpy as np

from modalities.filtering.kernels import compiled

HASH_BASIS, HASH_PRIME = np.uint64(2166136261), np.uint64(16777619)
SIGN, MASK = np.uint64(0xFFFFFF00), np.uint64(0xFFFFFFFF)


@compiled
def word_hash(buf, start, end):
    """Return fastText's hash of bytes: FNV-1a over signed bytes."""
    h = HASH_BASIS
    for i in range(start, end):
        c = np.uint64(buf[i])
        if c >= 128:
            c |= SIGN
        h = ((h ^ c) * HASH_PRIME) & MASK
    return h


@compiled
def word_table(words, offsets):
    """Return an open-addressing table of the dictionary's words, four times as large as they are many."""
    size = 16
    while size < 4 * len(offsets):
        size *= 2
    table = np.full(size, -1, np.int32)
    for w in range(len(offsets) - 1):
        slot = np.int64(word_hash(words, offsets[w], offsets[w + 1])) & (size - 1)
        while table[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        table[slot] = w
    return table


@compiled
def _find(buf, start, end, words, offsets, table):
    slot = np.int64(word_hash(buf, start, end)) & (len(table) - 1)
    while table[slot] >= 0:
        w = table[slot]
        if offsets[w + 1] - offsets[w] == end - start:
            same = True
            for k in range(end - start):
                if words[offsets[w] + k] != buf[start + k]:
                    same = False
                    break
            if same:
                return w
        slot = (slot + 1) & (len(table) - 1)
    return -1


@compiled
def _subwords(word, n, num_words, bucket, min_n, max_n, retained, rows, count):
    """Append the rows of the character n-grams of `<word>` to `rows`; return the new count."""
    for i in range(n):
        if (word[i] & 0xC0) == 0x80:
            continue
        h, j, k = HASH_BASIS, i, 1
        while j < n and k <= max_n:
            while True:
                c = np.uint64(word[j])
                if c >= 128:
                    c |= SIGN
                h = ((h ^ c) * HASH_PRIME) & MASK
                j += 1
                if j >= n or (word[j] & 0xC0) != 0x80:
                    break
            if k >= min_n and not (k == 1 and (i == 0 or j == n)):
                row = retained[np.uint32(h) % np.uint32(bucket)]
                if row >= 0:
                    rows[count] = num_words + row
                    count += 1
            k += 1
    return count


@compiled
def _features(buf, start, end, words, word_offsets, table, label, bucket, min_n, max_n, retained, word, rows):
    """Write the rows of one word: its own, if it is known, then its n-grams. Return (number, row of the word or -1)."""
    w = _find(buf, start, end, words, word_offsets, table)
    n, count = end - start, 0
    if w < 0 and n >= len(label):
        is_label = True
        for k in range(len(label)):
            if label[k] != buf[start + k]:
                is_label = False
                break
        if is_label:
            return 0, w
    if w >= 0:
        rows[0] = w
        count = 1
    word[0], word[n + 1] = 60, 62
    for k in range(n):
        word[k + 1] = buf[start + k]
    return _subwords(word, n + 2, len(word_offsets) - 1, bucket, min_n, max_n, retained, rows, count), w


@compiled
def hidden_vectors(
    buf, offsets, words, word_offsets, table, label, end_of_line, bucket, min_n, max_n, retained, matrix,
    seen_bytes, seen_sizes, seen_counts, seen_rows, out,
):  # fmt: skip
    """Write the mean input vector of each document (line feeds count as blanks; the end of the line is a word).

    `seen_*` remember the rows of short words in a table that later words overwrite.
    """
    longest = 0
    for d in range(len(offsets) - 1):
        longest = max(longest, offsets[d + 1] - offsets[d])
    word, rows = np.empty(longest + 2, np.uint8), np.empty((longest + 2) * max_n + 1, np.int32)
    slots, size, most = len(seen_sizes), seen_bytes.shape[1], seen_rows.shape[1]
    hidden = np.zeros(matrix.shape[1], np.float32)
    for d in range(len(offsets) - 1):
        hidden[:] = 0
        features = 0
        i, end = offsets[d], offsets[d + 1]
        ended = False
        while i < end and not ended:
            c = buf[i]
            if c == 32 or (c >= 9 and c <= 13) or c == 0:
                i += 1
                continue
            start = i
            h = HASH_BASIS
            while i < end and not (buf[i] == 32 or (buf[i] >= 9 and buf[i] <= 13) or buf[i] == 0):
                h = (h ^ np.uint64(buf[i])) * HASH_PRIME
                i += 1
            n = i - start
            slot = np.int64((h ^ (h >> np.uint64(17))) & np.uint64(slots - 1))
            hit = n <= size and seen_sizes[slot] == n
            if hit:
                for k in range(n):
                    if seen_bytes[slot, k] != buf[start + k]:
                        hit = False
                        break
            if hit:
                count = seen_counts[slot]
                for r in range(count):
                    row = seen_rows[slot, r]
                    for q in range(len(hidden)):
                        hidden[q] += matrix[row, q]
                features += count
                continue
            count, w = _features(
                buf, start, i, words, word_offsets, table, label, bucket, min_n, max_n, retained, word, rows
            )
            if w >= 0 and w == end_of_line:
                ended = True  # the word </s> ends the line, as in fastText
                break
            for r in range(count):
                for q in range(len(hidden)):
                    hidden[q] += matrix[rows[r], q]
            features += count
            if n <= size and count <= most:
                seen_sizes[slot], seen_counts[slot] = n, count
                for k in range(n):
                    seen_bytes[slot, k] = buf[start + k]
                for r in range(count):
                    seen_rows[slot, r] = rows[r]
        if end_of_line >= 0:
            for q in range(len(hidden)):
                hidden[q] += matrix[end_of_line, q]
            features += 1
        scale = np.float32(1.0 / max(features, 1))
        for q in range(len(hidden)):
            out[d, q] = hidden[q] * scale


@compiled
def _log(x):
    return np.float32(np.log(np.float64(x) + 1e-5))


@compiled
def best_leaf(hidden, output, left, right, num_labels, labels, scores):
    """Write label and probability of the best leaf of the hierarchical softmax for each document."""
    nodes, logs = np.empty(4 * num_labels, np.int32), np.empty(4 * num_labels, np.float32)
    dim = hidden.shape[1]
    for d in range(len(hidden)):
        best, label = np.float32(-np.inf), -1
        top = 1
        nodes[0], logs[0] = 2 * num_labels - 2, 0
        while top > 0:
            top -= 1
            node, log = nodes[top], logs[top]
            if label >= 0 and log < best:
                continue
            if node < num_labels:
                if label < 0 or log > best:
                    best, label = log, node
                continue
            f = np.float32(0)
            for q in range(dim):
                f += output[node - num_labels, q] * hidden[d, q]
            f = np.float32(1.0 / np.float64(np.float32(1) + np.float32(np.exp(-f))))
            nodes[top], logs[top] = right[node], log + _log(f)
            top += 1
            nodes[top], logs[top] = left[node], log + _log(np.float32(1.0 - np.float64(f)))
            top += 1
        labels[d], scores[d] = label, np.exp(best)
