"""Config of ingestion: sources, how their records become documents, and what happens to those that cannot."""

import dataclasses
from pathlib import PurePosixPath
from typing import Literal

from modalities.config import key
from modalities.errors import Invalid

VERSIONS = {"ingestion": 1}
RESULT_PACKAGES: dict[str, tuple[str, ...]] = {
    "ingestion": ("trafilatura", "justext", "lxml", "datatrove", "tldextract", "faust-cchardet"),
}

Format = Literal["warc", "jsonl", "parquet", "text"]
Documents = Literal["file", "paragraphs", "lines"]

SUFFIXES: dict[str, Format] = {
    ".warc": "warc",
    ".wet": "warc",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
COMPRESSIONS = (".gz", ".zst", ".zstd")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A named set of files, read in one way."""

    paths: tuple[str, ...] = key(
        help="Files or globs (`*`, `?`, `[...]`, `**`), relative to the project root or absolute."
    )
    format: Literal["auto", "warc", "jsonl", "parquet", "text"] = key(
        "auto", help="How the files are read; `auto` decides by file name."
    )
    text_key: str = key("text", help="JSONL field or Parquet column that holds the text.")
    id_key: str = key("id", help="Field that holds the record's id; records without one are named `<file>#<position>`.")
    url_key: str = key("url", help="Field that holds the record's web address, if there is one.")
    documents: Documents = key(
        "file", help="What is a document of a plain text file: the file, a paragraph (blank line between) or a line."
    )
    language: str | None = key(
        None, help="ISO code of the source's main language, such as `en`; a note.", kind="runtime"
    )
    license: str | None = key(None, help="Licence of the texts; a note for the report.", kind="runtime")
    provenance: str | None = key(None, help="Where the texts come from; a note for the report.", kind="runtime")

    def __post_init__(self) -> None:
        if not self.paths:
            raise Invalid("paths", "expected at least one file or glob, got none; name the files of this source")
        for name in ("text_key", "id_key", "url_key"):
            if not getattr(self, name):
                raise Invalid(
                    name, "expected the name of a field, got an empty text; leave the key out for its default"
                )
        code = self.language
        if code is not None and not (2 <= len(code) <= 3 and code.isascii() and code.isalpha() and code.islower()):
            raise Invalid(
                "language", f"expected an ISO 639 code of two or three letters, got {code!r}; write `en` or `de`"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Extraction:
    """Text out of HTML. The defaults are datatrove's, as in the FineWeb recipe, except for the limit (1 s of wall time there)."""

    extractor: Literal["trafilatura"] = key("trafilatura", help="Library that extracts the main text of a page.")
    favor_precision: bool = key(True, help="Prefer less text but the right one.")
    include_comments: bool = key(False, help="Keep readers' comments.")
    include_tables: bool = key(True, help="Keep the text of tables.")
    deduplicate: bool = key(
        True, help="Drop segments that a page repeats more than twice; other pages have no influence."
    )
    cpu_seconds: float = key(
        5.0, help="CPU time that one page may take before it is dropped (reason extraction_timeout)."
    )

    def __post_init__(self) -> None:
        if not 0.05 <= self.cpu_seconds <= 3600:
            raise Invalid("cpu_seconds", f"expected 0.05 to 3600, got {self.cpu_seconds}; ordinary pages take 0.02")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class IngestionConfig:
    """The `ingestion` section of a run."""

    sources: dict[str, Source] = key(help="Named sources; a mapping from name to its files.")
    max_document_bytes: int = key(
        16_000_000, help="Longer records are skipped as a stream and counted (reason too_large)."
    )
    on_corrupt: Literal["fail", "quarantine"] = key(
        "fail",
        help="A damaged file (truncated gzip, ...) ends the run, or what precedes the damage is kept and the loss counted.",
    )
    corrupt_limit: float = key(
        0.5,
        help="Largest share of a file's records (and, in quarantine, of its bytes) that may be broken before it is an error.",
    )
    on_duplicate_id: Literal["keep", "fail"] = key(
        "keep", help="Documents that share an id within a source are kept, counted and listed, or end the run."
    )
    max_unit_bytes: int = key(256_000_000, help="Larger uncompressed files are read as several units.", kind="runtime")
    url_filter: bool = key(True, help="Drop documents whose web address is on datatrove's block lists.")
    extraction: Extraction = key(help="How text is taken out of HTML.", factory=Extraction)

    def __post_init__(self) -> None:
        if not self.sources:
            raise Invalid("sources", "expected at least one source, got none; add `<name>: {paths: [...]}`")
        if not 1_000 <= self.max_document_bytes <= 256_000_000:
            raise Invalid("max_document_bytes", f"expected 1000 to 256000000 (memory), got {self.max_document_bytes}")
        if not 0 <= self.corrupt_limit <= 1:
            raise Invalid("corrupt_limit", f"expected a share between 0 and 1, got {self.corrupt_limit}")
        if self.max_unit_bytes < 1_000:
            raise Invalid("max_unit_bytes", f"expected at least 1000, got {self.max_unit_bytes}; 256000000 is usual")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class IngestionSection:
    """What the node of one source reads. Keys that the source's format does not need are None, so that they move no digest."""

    format: Literal["auto", "warc", "jsonl", "parquet", "text"] = key(
        help="As in the source; `auto` is decided file by file."
    )
    text_key: str | None = key(None, help="As in the source.")
    id_key: str | None = key(None, help="As in the source.")
    url_key: str | None = key(None, help="As in the source.")
    documents: Documents | None = key(None, help="As in the source.")
    max_document_bytes: int = key(help="As in the config.")
    on_corrupt: Literal["fail", "quarantine"] = key(help="As in the config.")
    corrupt_limit: float = key(help="As in the config.")
    on_duplicate_id: Literal["keep", "fail"] = key(help="As in the config.")
    url_filter: bool | None = key(None, help="As in the config.")
    extraction: Extraction | None = key(None, help="As in the config.")


def section(config: IngestionConfig, source: str) -> IngestionSection:
    """Return what the node of `source` reads: neither its name, nor its files, nor its notes."""
    chosen = config.sources[source]
    form = source_format(chosen)
    fields = form in ("jsonl", "parquet", "auto")
    return IngestionSection(
        format=form,
        text_key=chosen.text_key if fields else None,
        id_key=chosen.id_key if fields else None,
        url_key=chosen.url_key if fields else None,
        documents=chosen.documents if form in ("text", "auto") else None,
        max_document_bytes=config.max_document_bytes,
        on_corrupt=config.on_corrupt,
        corrupt_limit=config.corrupt_limit,
        on_duplicate_id=config.on_duplicate_id,
        url_filter=config.url_filter if form != "text" else None,
        extraction=config.extraction if form in ("warc", "auto") else None,
    )


def source_format(source: Source) -> Literal["auto", "warc", "jsonl", "parquet", "text"]:
    """Return the format of all files of a source, or `auto` where the globs leave it open."""
    if source.format != "auto":
        return source.format
    formats = {format_of(pattern) for pattern in source.paths}
    only = formats.pop()
    return "auto" if formats or only is None else only


def format_of(name: str) -> Format | None:
    """Return the format that a file name or glob stands for, or None."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes]
    while suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1]) if suffixes else None
