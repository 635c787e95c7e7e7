# Compiled loops: numba infers types, takes arguments by position, and pays for every call between long loops.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# ruff: noqa: PLR0912, PLR0915, PLR1714, SIM102, SIM110
"""Compiled loops of filtering, over UTF-8 bytes as Arrow keeps them.

Import through `compiled.kernels`, which first says where compiled code is cached. All counts are of Unicode characters, all
offsets of bytes. Open-addressing tables are sized by powers of two and stamped, so that they are never cleared. Equal
hashes of chunks and lines are confirmed by comparing bytes; n-grams are told apart by 64-bit hashes.
"""

from typing import Any

import numba as nb
import numpy as np

MIX = np.uint64(0x9FB21C651E98DF25)
PRIME = np.uint64(0x100000001B3)
BASIS = np.uint64(0xCBF29CE484222325)
TOKEN_BASE = np.uint64(0x9E3779B97F4A7C15)
compiled: Any = nb.njit(cache=True, nogil=True, boundscheck=False)

# Character classes of one position: 0 other, 1 white space, 2 white space that ends a line (str.splitlines).


@compiled
def space_at(buf, i, end):
    """Return class and width in bytes of the character at `i`; width is only right for white space."""
    c = buf[i]
    if c < 128:
        if c == 32 or c == 9 or c == 31:
            return 1, 1
        if (c >= 10 and c <= 13) or (c >= 28 and c <= 30):
            return 2, 1
        return 0, 1
    if c == 0xC2 and i + 1 < end:
        if buf[i + 1] == 0x85:
            return 2, 2
        if buf[i + 1] == 0xA0:
            return 1, 2
        return 0, 1
    if c < 0xE1 or c > 0xE3 or i + 2 >= end:
        return 0, 1
    b, d = buf[i + 1], buf[i + 2]
    if c == 0xE2:
        if b == 0x80:
            if d == 0xA8 or d == 0xA9:
                return 2, 3
            if (d >= 0x80 and d <= 0x8A) or d == 0xAF:
                return 1, 3
        elif b == 0x81 and d == 0x9F:
            return 1, 3
    elif (c == 0xE1 and b == 0x9A and d == 0x80) or (c == 0xE3 and b == 0x80 and d == 0x80):
        return 1, 3
    return 0, 1


@compiled
def count_characters(buf, offsets, out):
    """Write the number of characters of each document."""
    for d in range(len(offsets) - 1):
        n = 0
        for i in range(offsets[d], offsets[d + 1]):
            if (buf[i] & 0xC0) != 0x80:
                n += 1
        out[d] = n


@compiled
def letter_codes(letters, lengths, out):
    """Write per word a polynomial hash of its letters, so that hashes of joined words follow from those of words, and the
    power of the base that its length stands for."""
    i = 0
    for w in range(len(lengths)):
        code, power = np.uint64(0), np.uint64(1)
        for _ in range(lengths[w]):
            code = code * TOKEN_BASE + np.uint64(letters[i]) + np.uint64(1)
            power *= TOKEN_BASE
            i += 1
        out[0, w], out[1, w] = code, power


@compiled
def _same(a, i, b, j, size):
    for k in range(size):
        if a[i + k] != b[j + k]:
            return False
    return True


@compiled
def _grow(keys, ids):
    mask = np.uint64(2 * len(keys) - 1)
    new_keys, new_ids = np.zeros(2 * len(keys), np.uint64), np.full(2 * len(keys), -1, np.int32)
    for i in range(len(keys)):
        if ids[i] >= 0:
            slot = (keys[i] ^ (keys[i] >> np.uint64(32))) & mask
            while new_ids[slot] >= 0:
                slot = (slot + np.uint64(1)) & mask
            new_keys[slot], new_ids[slot] = keys[i], ids[i]
    return new_keys, new_ids


@compiled
def encode(buf, offsets, blob, blob_offsets, keys, ids, chunks, gaps, lines, line_spans, tails, doc_lines, new_spans):
    """Split documents into lines and chunks and look every chunk up.

    Writes: `chunks` id per chunk; `gaps` 1 where the white space before a chunk in its line is not one blank; `lines` first
    chunk of each line; `line_spans` first and last byte of a line's chunks, and its first and last byte; `tails` 1 where a
    line ends in white space that is not one blank; `doc_lines` first line of each document; `new_spans` bytes of each new
    chunk. Returns (keys, ids, chunks, lines, new chunks): the table may have grown.
    """
    known = len(blob_offsets) - 1
    num_chunks, num_lines, num_new = 0, 0, 0
    mask = np.uint64(len(keys) - 1)
    for d in range(len(offsets) - 1):
        doc_lines[d] = num_lines
        i, end = offsets[d], offsets[d + 1]
        while i < end:
            # one line
            lines[num_lines] = num_chunks
            line_start, first, last = i, -1, -1
            run_start = i  # white space since the last chunk
            width = 0
            while i < end:
                kind, width = space_at(buf, i, end)
                if kind == 2:
                    break
                if kind == 1:
                    i += width
                    continue
                start = i
                h = BASIS
                while i < end:
                    c = buf[i]
                    if c <= 32 or c == 0xC2 or (c >= 0xE1 and c <= 0xE3):
                        if space_at(buf, i, end)[0] != 0:
                            break
                    h = (h ^ np.uint64(c)) * PRIME
                    i += 1
                h ^= h >> np.uint64(29)
                h *= MIX
                size = i - start
                slot = (h ^ (h >> np.uint64(32))) & mask
                found = -1
                while ids[slot] >= 0:
                    if keys[slot] == h:
                        g = ids[slot]
                        if g < known:
                            if blob_offsets[g + 1] - blob_offsets[g] == size and _same(
                                buf, start, blob, blob_offsets[g], size
                            ):
                                found = g
                                break
                        else:
                            s = new_spans[g - known, 0]
                            if new_spans[g - known, 1] - s == size and _same(buf, start, buf, s, size):
                                found = g
                                break
                    slot = (slot + np.uint64(1)) & mask
                if found < 0:
                    found = known + num_new
                    new_spans[num_new, 0], new_spans[num_new, 1] = start, i
                    num_new += 1
                    keys[slot], ids[slot] = h, found
                    if 2 * (found + 1) > len(keys):
                        keys, ids = _grow(keys, ids)
                        mask = np.uint64(len(keys) - 1)
                chunks[num_chunks] = found
                gaps[num_chunks] = 0 if (start - run_start == 1 and buf[run_start] == 32) or start == run_start else 1
                num_chunks += 1
                if first < 0:
                    first = start
                last = i
                run_start = i
            tails[num_lines] = 0 if i == run_start or (i - run_start == 1 and buf[run_start] == 32) else 1
            if first < 0:
                first = last = line_start
            line_spans[num_lines, 0], line_spans[num_lines, 1] = first, last
            line_spans[num_lines, 2], line_spans[num_lines, 3] = line_start, i
            num_lines += 1
            if i < end:  # step over the end of the line; \r\n is one
                if buf[i] == 13 and i + 1 < end and buf[i + 1] == 10:
                    i += 2
                else:
                    i += width
    doc_lines[len(offsets) - 1] = num_lines
    lines[num_lines] = num_chunks
    return keys, ids, num_chunks, num_lines, num_new


@compiled
def expand(chunks, bounds, token_offsets, chunk_tokens, tokens, out):
    """Write the token ids of all chunks into `tokens`, and for each of `bounds` (chunk positions) its token position."""
    n, b = 0, 0
    for i in range(len(chunks)):
        while b < len(bounds) and bounds[b] == i:
            out[b] = n
            b += 1
        for k in range(token_offsets[chunks[i]], token_offsets[chunks[i] + 1]):
            tokens[n] = chunk_tokens[k]
            n += 1
    while b < len(bounds):
        out[b] = n
        b += 1
    return n


@compiled
def count_tokens(chunks, token_offsets):
    """Return the number of tokens of all chunks."""
    n = 0
    for i in range(len(chunks)):
        n += token_offsets[chunks[i] + 1] - token_offsets[chunks[i]]
    return n


@compiled
def quality(chunks, lines, doc_lines, attributes, flags, out):
    """Sum up chunk attributes per document: columns as `memo.ATTRIBUTES`, then bullet lines and ellipsis lines."""
    width = attributes.shape[1]
    for d in range(len(doc_lines) - 1):
        for k in range(width + 2):
            out[d, k] = 0
        for line in range(doc_lines[d], doc_lines[d + 1]):
            a, b = lines[line], lines[line + 1]
            for i in range(a, b):
                for k in range(width):
                    out[d, k] += attributes[chunks[i], k]
            if b > a:
                out[d, width] += flags[chunks[a]] & 1
                out[d, width + 1] += (flags[chunks[b - 1]] >> 1) & 1


@compiled
def stop_words(tokens, bounds, token_stop, num_stop, out):
    """Write per document how many distinct stop words it has, and how often stop words occur."""
    seen = np.full(num_stop + 1, -1, np.int64)
    for d in range(len(bounds) - 1):
        distinct, total = 0, 0
        for i in range(bounds[d], bounds[d + 1]):
            s = token_stop[tokens[i]]
            if s >= 0:
                total += 1
                if seen[s] != d:
                    seen[s] = d
                    distinct += 1
        out[d, 0], out[d, 1] = distinct, total


@compiled
def sentences(chunks, gaps, lines, tails, doc_lines, token_offsets, chunk_tokens, token_class, out):
    """Write per document the sum of its lines' sentences, by spaCy's sentencizer run on each line.

    Classes of tokens: 1 ends a sentence, 0 other punctuation, 2 the rest. White space that is a token to spaCy is of class 2.
    """
    for d in range(len(doc_lines) - 1):
        total = 0
        for line in range(doc_lines[d], doc_lines[d + 1]):
            count, ended = 1, False
            for i in range(lines[line], lines[line + 1]):
                if gaps[i] == 1 and ended:
                    count += 1
                    ended = False
                for k in range(token_offsets[chunks[i]], token_offsets[chunks[i] + 1]):
                    c = token_class[chunk_tokens[k]]
                    if c == 1:
                        ended = True
                    elif c == 2 and ended:
                        count += 1
                        ended = False
            if tails[line] == 1 and ended:
                count += 1
            total += count
        out[d] = total


@compiled
def _table_size(n):
    size = 16
    while size < 2 * n + 2:
        size *= 2
    return size


@compiled
def _longest(bounds):
    longest = 0
    for d in range(len(bounds) - 1):
        longest = max(longest, bounds[d + 1] - bounds[d])
    return longest


@compiled
def top_grams(tokens, bounds, token_length, sizes, out):
    """Write per document and size the characters of the most frequent n-gram times its count; -1 where there is no n-gram.

    Words are joined by blanks. Among equally frequent n-grams the one that occurs first counts, as in `Counter.most_common`.
    """
    longest = _longest(bounds)
    keys, stamps = np.zeros(_table_size(longest), np.uint64), np.zeros(_table_size(longest), np.int64)
    entry = np.zeros(_table_size(longest), np.int32)
    counts, firsts = np.zeros(longest + 1, np.int32), np.zeros(longest + 1, np.int32)
    stamp = 0
    for d in range(len(bounds) - 1):
        start, n = bounds[d], bounds[d + 1] - bounds[d]
        mask = np.uint64(_table_size(n) - 1)
        for q in range(len(sizes)):
            size = sizes[q]
            out[d, q] = -1
            if n < size:
                continue
            stamp += 1
            entries, best = 0, 0
            for i in range(n - size + 1):
                h = np.uint64(0)
                for j in range(size):
                    h = (h ^ np.uint64(tokens[start + i + j] + 1)) * MIX
                    h ^= h >> np.uint64(29)
                slot = (h ^ (h >> np.uint64(32))) & mask
                while stamps[slot] == stamp and keys[slot] != h:
                    slot = (slot + np.uint64(1)) & mask
                if stamps[slot] != stamp:
                    stamps[slot], keys[slot], entry[slot] = stamp, h, entries
                    counts[entries], firsts[entries] = 1, i
                    entries += 1
                    best = max(best, 1)
                else:
                    e = entry[slot]
                    counts[e] += 1
                    best = max(best, counts[e])
            e = 0
            while counts[e] != best:
                e += 1
            length = size - 1
            for j in range(size):
                length += token_length[tokens[start + firsts[e] + j]]
            out[d, q] = length * best


@compiled
def duplicate_grams(tokens, bounds, token_length, token_hash, token_power, sizes, out):
    """Write per document and size the characters of n-grams that occurred before, scanned greedily as datatrove does.

    Words are joined by nothing, so that other words with the same letters are equal: a polynomial hash of the letters.
    """
    longest = _longest(bounds)
    keys, stamps = np.zeros(_table_size(longest), np.uint64), np.zeros(_table_size(longest), np.int64)
    grams, lengths = np.zeros(longest + 1, np.uint64), np.zeros(longest + 1, np.int64)
    stamp = 0
    for d in range(len(bounds) - 1):
        start, n = bounds[d], bounds[d + 1] - bounds[d]
        mask = np.uint64(_table_size(n) - 1)
        have = 0  # grams[i] covers the `have` words from i on
        for i in range(n):
            grams[i], lengths[i] = 0, 0
        for q in range(len(sizes)):
            size = sizes[q]
            out[d, q] = 0
            if n < size:
                continue
            if size < have:
                have = 0
                for i in range(n):
                    grams[i], lengths[i] = 0, 0
            while have < size:
                for i in range(n - have):
                    t = tokens[start + i + have]
                    grams[i] = grams[i] * token_power[t] + token_hash[t]
                    lengths[i] += token_length[t]
                have += 1
            stamp += 1
            i, total = 0, 0
            while i < n - size + 1:
                h = grams[i] * MIX
                slot = (h ^ (h >> np.uint64(32))) & mask
                while stamps[slot] == stamp and keys[slot] != h:
                    slot = (slot + np.uint64(1)) & mask
                if stamps[slot] == stamp:
                    total += lengths[i]
                    i += size
                else:
                    stamps[slot], keys[slot] = stamp, h
                    i += 1
            out[d, q] = total


@compiled
def _duplicates(buf, starts, ends, n, keys, stamps, where, stamp):
    """Return how many of `n` byte strings occurred before, and their characters. Tables must be larger than 2n."""
    mask = np.uint64(_table_size(n) - 1)
    elements, characters = 0, 0
    for e in range(n):
        h = BASIS
        for i in range(starts[e], ends[e]):
            h = (h ^ np.uint64(buf[i])) * PRIME
        h ^= h >> np.uint64(29)
        h *= MIX
        size = ends[e] - starts[e]
        slot = (h ^ (h >> np.uint64(32))) & mask
        while stamps[slot] == stamp:
            w = where[slot]
            if keys[slot] == h and ends[w] - starts[w] == size and _same(buf, starts[e], buf, starts[w], size):
                break
            slot = (slot + np.uint64(1)) & mask
        if stamps[slot] == stamp:
            elements += 1
            for i in range(starts[e], ends[e]):
                if (buf[i] & 0xC0) != 0x80:
                    characters += 1
        else:
            stamps[slot], keys[slot], where[slot] = stamp, h, e
    return elements, characters


@compiled
def _strip(buf, start, end):
    while start < end:
        kind, width = space_at(buf, start, end)
        if kind == 0:
            break
        start += width
    while end > start:
        back = end - 1
        while back > start and (buf[back] & 0xC0) == 0x80:
            back -= 1
        if space_at(buf, back, end)[0] == 0:
            break
        end = back
    return start, end


@compiled
def _split(buf, start, end, least, starts, ends):
    """Split at runs of at least `least` line feeds; return the number of parts (1 for an empty text)."""
    n, part, i = 0, start, start
    while i < end:
        if buf[i] == 10:
            j = i
            while j < end and buf[j] == 10:
                j += 1
            if j - i >= least:
                starts[n], ends[n] = part, i
                n += 1
                part = j
            i = j
        else:
            i += 1
    starts[n], ends[n] = part, end
    return n + 1


@compiled
def extents(buf, offsets, out):
    """Write per document its characters, and its bytes without white space at both ends."""
    for d in range(len(offsets) - 1):
        n = 0
        for i in range(offsets[d], offsets[d + 1]):
            if (buf[i] & 0xC0) != 0x80:
                n += 1
        start, end = _strip(buf, offsets[d], offsets[d + 1])
        out[d, 0], out[d, 1] = n, end - start


@compiled
def repeated_lines(buf, offsets, out):
    """Write per document: paragraphs, repeated paragraphs, their characters; lines, repeated lines, their characters."""
    longest = _longest(offsets) + 2
    starts, ends = np.zeros(longest, np.int64), np.zeros(longest, np.int64)
    size = _table_size(longest)
    keys, stamps, where = np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    stamp = 0
    for d in range(len(offsets) - 1):
        for part in range(2):
            a, b = offsets[d], offsets[d + 1]
            if part == 0:
                a, b = _strip(buf, a, b)
            n = _split(buf, a, b, 2 - part, starts, ends)
            stamp += 1
            elements, characters = _duplicates(buf, starts, ends, n, keys, stamps, where, stamp)
            out[d, 3 * part], out[d, 3 * part + 1], out[d, 3 * part + 2] = n, elements, characters


@compiled
def _last_codepoint(buf, start, end):
    i = end - 1
    while i > start and (buf[i] & 0xC0) == 0x80:
        i -= 1
    c = np.int64(buf[i])
    if c < 0x80:
        return c
    code = c & 0x1F if c < 0xE0 else c & 0x0F if c < 0xF0 else c & 0x07
    for k in range(i + 1, end):
        code = (code << 6) | (np.int64(buf[k]) & 0x3F)
    return code


@compiled
def line_quality(buf, offsets, stop_codes, short, out):
    """Write per document: non-blank lines (split at line feeds), of these with a terminal mark, short ones, characters in
    repeated ones; line feeds. `stop_codes` is sorted."""
    longest = _longest(offsets) + 2
    starts, ends = np.zeros(longest, np.int64), np.zeros(longest, np.int64)
    size = _table_size(longest)
    keys, stamps, where = np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for d in range(len(offsets) - 1):
        n, marked, short_lines, feeds = 0, 0, 0, 0
        i, end = offsets[d], offsets[d + 1]
        while i <= end:
            start, characters = i, 0
            while i < end and buf[i] != 10:
                if (buf[i] & 0xC0) != 0x80:
                    characters += 1
                i += 1
            if i < end:
                feeds += 1
            a, b = _strip(buf, start, i)
            if b > a:
                starts[n], ends[n] = start, i
                n += 1
                if characters <= short:
                    short_lines += 1
                code = _last_codepoint(buf, start, i)
                k = np.searchsorted(stop_codes, code)
                if k < len(stop_codes) and stop_codes[k] == code:
                    marked += 1
            i += 1
        repeated = _duplicates(buf, starts, ends, n, keys, stamps, where, d + 1)[1]
        out[d, 0], out[d, 1], out[d, 2], out[d, 3], out[d, 4] = n, marked, short_lines, repeated, feeds


@compiled
def find_phrases(buf, start, end, phrases, phrase_offsets, is_first):
    """Return a bit per phrase that occurs between `start` and `end`, ASCII capitals taken as small letters."""
    found = np.uint64(0)
    for i in range(start, end):
        if not is_first[buf[i]]:
            continue
        for p in range(len(phrase_offsets) - 1):
            a, size = phrase_offsets[p], phrase_offsets[p + 1] - phrase_offsets[p]
            if i + size > end:
                continue
            k = 0
            while k < size:
                c = buf[i + k]
                if c >= 65 and c <= 90:
                    c += 32
                if c != phrases[a + k]:
                    break
                k += 1
            if k == size:
                found |= np.uint64(1) << np.uint64(p)
    return found


@compiled
def _terminal(buf, start, end):
    if end == start:
        return False
    c = buf[end - 1]
    if c != 46 and c != 63 and c != 33 and c != 34 and c != 39:
        return False
    return not (c == 46 and end - start >= 3 and buf[end - 2] == 46 and buf[end - 3] == 46)


@compiled
def c4_lines(
    buf, chunks, lines, line_spans, doc_lines, lengths, skip, phrases, phrase_offsets, is_first,
    terminal, min_words, max_length, javascript, policy, out_buf, out_offsets, out,
):  # fmt: skip
    """Write the lines that C4 keeps, joined by line feeds, and per document: its first line with 'lorem ipsum' and its first
    with '{' among the lines that come so far (else -1), and the number of kept lines.

    Phrases: 0 lorem ipsum, 1 javascript, 2 '{', from 3 on the policy phrases. Limits of -1 are off. Documents of `skip` stay
    empty: they are done in Python.
    """
    n = 0
    for d in range(len(doc_lines) - 1):
        out_offsets[d] = n
        lorem, curly, kept = -1, -1, 0
        if not skip[d]:
            for line in range(doc_lines[d], doc_lines[d + 1]):
                start, end = line_spans[line, 0], line_spans[line, 1]
                words = lines[line + 1] - lines[line]
                if max_length >= 0:
                    long = False
                    for i in range(lines[line], lines[line + 1]):
                        if lengths[chunks[i]] > max_length:
                            long = True
                            break
                    if long:
                        continue
                if (terminal and not _terminal(buf, start, end)) or words < min_words:
                    continue
                found = find_phrases(buf, start, end, phrases, phrase_offsets, is_first)
                if found & np.uint64(1) and lorem < 0:
                    lorem = line - doc_lines[d]
                if javascript and found & np.uint64(2):
                    continue
                if found & np.uint64(4) and curly < 0:
                    curly = line - doc_lines[d]
                if policy and found >> np.uint64(3):
                    continue
                if kept > 0:
                    out_buf[n] = 10
                    n += 1
                for i in range(start, end):
                    out_buf[n] = buf[i]
                    n += 1
                kept += 1
        out[d, 0], out[d, 1], out[d, 2] = lorem, curly, kept
    out_offsets[len(doc_lines) - 1] = n


@compiled
def rebuild(blob, blob_offsets):
    """Return the look-up table of chunks that are already known."""
    size = 1 << 16
    while size < 4 * len(blob_offsets):
        size *= 2
    keys, ids = np.zeros(size, np.uint64), np.full(size, -1, np.int32)
    mask = np.uint64(size - 1)
    for g in range(len(blob_offsets) - 1):
        h = BASIS
        for i in range(blob_offsets[g], blob_offsets[g + 1]):
            h = (h ^ np.uint64(blob[i])) * PRIME
        h ^= h >> np.uint64(29)
        h *= MIX
        slot = (h ^ (h >> np.uint64(32))) & mask
        while ids[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        keys[slot], ids[slot] = h, g
    return keys, ids
