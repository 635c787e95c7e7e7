"""The two files of a unit, written row group by row group."""

from collections import Counter
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from modalities.documents import DOCUMENTS, GROUP_BYTES, GROUP_ROWS, GroupWriter, metadata_json
from modalities.ingestion.records import Document, Reject, excerpt
from modalities.work import digest_of

REJECTS = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("excerpt", pa.string(), nullable=False),
    ]
)
_EXAMPLES = 3


class Output:
    """Takes records in order of position and counts them."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._documents = GroupWriter(folder / "documents.parquet", DOCUMENTS)
        self._rejects = GroupWriter(folder / "rejects.parquet", REJECTS)
        self._waiting: list[Document] = []
        self._texts: list[bytes] = []
        self._waiting_bytes = 0
        self._refused: list[Reject] = []
        self.num_documents = 0
        self.text_bytes = 0
        self.dropped: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    @property
    def num_records(self) -> int:
        """Records that were added."""
        return self.num_documents + self.dropped.total()

    def add(self, record: Document | Reject) -> None:
        """Take a document, whose text can be written as UTF-8, or a reject."""
        if isinstance(record, Reject):
            self._add_reject(record)
            return
        text = record.text.encode("utf-8")
        if self._waiting and self._waiting_bytes + len(text) > GROUP_BYTES:
            self._write_documents()
        self._waiting.append(record)
        self._texts.append(text)
        record.text = ""
        self._waiting_bytes += len(text)
        self.num_documents += 1
        self.text_bytes += len(text)
        if len(self._waiting) == GROUP_ROWS:
            self._write_documents()

    def content(self) -> str:
        """Return the digest of both files, once they are closed."""
        return digest_of(self._documents.content(), self._rejects.content())

    def _add_reject(self, record: Reject) -> None:
        self.dropped[record.reason] += record.records
        shown = excerpt(record.excerpt)
        examples = self.examples.setdefault(record.reason, [])
        if len(examples) < _EXAMPLES:
            examples.append(f"at {record.position}: {shown}")
        self._refused.append(Reject(position=record.position, reason=record.reason, excerpt=shown))
        if len(self._refused) == GROUP_ROWS:
            self._write_rejects()

    def _write_documents(self) -> None:
        columns = {
            "id": [d.id if d.id is not None else f"{self._name}#{d.position}" for d in self._waiting],
            "position": [d.position for d in self._waiting],
            "text": pa.array(self._texts, pa.large_binary()).cast(pa.large_string()),
            "url": pa.array([d.url for d in self._waiting], pa.string()),
            "metadata": pa.array([metadata_json(d.metadata) for d in self._waiting], pa.string()),
        }
        self._documents.write(pa.table(columns))
        self._waiting, self._texts, self._waiting_bytes = [], [], 0

    def _write_rejects(self) -> None:
        columns = {field.name: [getattr(reject, field.name) for reject in self._refused] for field in REJECTS}
        self._rejects.write(pa.table(columns, schema=REJECTS))
        self._refused = []

    def __enter__(self) -> "Output":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._waiting:
            self._write_documents()
        if error is None and self._refused:
            self._write_rejects()
        self._documents.__exit__(kind, error, trace)
        self._rejects.__exit__(kind, error, trace)
