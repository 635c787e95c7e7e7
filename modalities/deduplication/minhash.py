"""MinHash signatures, bit for bit those of datatrove 0.10.1 (`MinhashDedupSignature`, 64-bit precision), and band keys.

A document's shingles are its n words in a row, hashed; its signature is the minimum of each of `buckets * per_bucket`
permutations over them. Two documents of Jaccard similarity s agree in a whole band with probability
1 - (1 - s^per_bucket)^buckets. Documents of fewer than n words have no signature.
"""

import dataclasses
import functools
import hashlib
from typing import Any, Literal

import numpy as np

from modalities.deduplication import kernels
from modalities.deduplication.kernels import I64, U64
from modalities.deduplication.words import Words


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """What a signature depends on beside the words."""

    ngram: int
    buckets: int
    hashes_per_bucket: int
    seed: int
    hash: Literal["xxhash64", "sha1"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Signatures:
    """Signatures of D documents. Rows of documents that have none are undefined."""

    has: np.ndarray[Any, np.dtype[np.bool_]]
    values: U64
    """(D, buckets * hashes_per_bucket)"""


def signatures(words: Words, *, parameters: Parameters) -> Signatures:
    """Return the signatures of documents."""
    hashes, ends = shingles(words, ngram=parameters.ngram, hash=parameters.hash)
    a, b = permutations(parameters.seed, parameters.buckets * parameters.hashes_per_bucket)
    values = np.empty((len(ends), len(a)), np.uint64)
    kernels.minima(hashes, ends, a, b, values)
    return Signatures(has=np.diff(ends, prepend=0) > 0, values=values)


def shingles(words: Words, *, ngram: int, hash: Literal["xxhash64", "sha1"]) -> tuple[U64, I64]:
    """Return the hashes of all n words in a row, and their number in documents 0 to d."""
    num_words = len(words.starts) - 1
    hashes, ends = np.empty(num_words, np.uint64), np.empty(len(words.ends), np.int64)
    if hash == "xxhash64":
        count = kernels.shingle_hashes(words.data, words.starts, words.ends, ngram, hashes, ends)
        return hashes[:count], ends
    data, starts = words.data.tobytes(), words.starts.tolist()
    found: list[bytes] = []
    first = 0
    for doc, last in enumerate(words.ends.tolist()):
        found += [
            hashlib.sha1(data[starts[i] : starts[i + ngram] - 1], usedforsecurity=False).digest()[:8]
            for i in range(first, last - ngram + 1)
        ]
        first, ends[doc] = last, len(found)
    return np.frombuffer(b"".join(found), np.dtype("<u8")).astype(np.uint64), ends


@functools.lru_cache(maxsize=8)
def permutations(seed: int, number: int) -> tuple[U64, U64]:
    """Return factors and summands of the permutations, drawn as datatrove draws them."""
    generator = np.random.RandomState(seed)
    a = generator.randint(1, kernels.MERSENNE, dtype=np.uint64, size=(1, number))[0]
    b = generator.randint(0, kernels.MERSENNE, dtype=np.uint64, size=(1, number))[0]
    return a, b


def band_keys(found: Signatures, *, buckets: int) -> U64:
    """Return the two 64-bit halves of each band's key, (D, buckets, 2).

    Equal bands have equal keys; among 10^9 documents two unequal ones share a key with probability 10^-20.
    """
    num_docs, num_hashes = found.values.shape
    keys = np.empty((num_docs, buckets, 2), np.uint64)
    as_bytes = np.ascontiguousarray(found.values, np.dtype("<u8")).view(np.uint8).reshape(-1)
    kernels.band_keys(as_bytes, 8 * num_hashes // buckets, keys)
    return keys
