"""The record that ends a unit or an instance: written last, so that its presence means the work is finished."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modalities.errors import StoreError

NAME = "manifest.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What was made, from what, and what came of it. Units and instances share this form."""

    node: str
    key: str
    """Digest of an instance, or key of a unit."""
    label: str
    version: int
    section: Mapping[str, Any]
    """The result keys that were read."""
    upstream: Mapping[str, Mapping[str, str]]
    """Role -> {"node", "key", "content"} of what was read."""
    content: str
    """Digest of the logical contents: equal contents, equal digest, whatever the file's bytes or the time."""
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Whole numbers that add up over units, such as documents_in, documents_out, tokens."""
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Documents dropped here, by reason: documents_in = documents_out + the sum of these."""
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the stage wants later stages and the report to know; JSON."""
    numerics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Numerics keys and device that were in force."""
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Relative path -> size in bytes of every file in the folder, this one left out."""
    units: tuple[str, ...] = ()
    """Keys of the units of a sharded instance, in order."""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """When, where, how long, at what cost; in no digest."""
    format: int = FORMAT

    def check_counts(self) -> None:
        """Raise `StoreError` unless documents in = documents out + dropped by reason."""
        if "documents_in" not in self.counts:
            return
        into, out, dropped = self.counts["documents_in"], self.counts["documents_out"], sum(self.dropped.values())
        if into != out + dropped:
            raise StoreError(
                f"{self.label}: expected documents in = out + dropped, got {into} != {out} + {dropped} ({dict(self.dropped)})"
            )


def read(folder: Path) -> Manifest:
    """Read the manifest of a folder."""
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path}: missing; run the node that makes it") from None
    except ValueError as error:
        raise StoreError(f"{path}: not valid JSON ({error}); remove the folder and run again") from None
    if data.get("format") != FORMAT:
        raise StoreError(
            f"{path}: expected manifest format {FORMAT}, got {data.get('format')!r}; remove the folder and run again"
        )
    data["units"] = tuple(data["units"])
    return Manifest(**data)


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder, durably."""
    write_json(folder / NAME, dataclasses.asdict(manifest))


def write_json(path: Path, data: Any) -> None:
    """Write JSON through a partial file, fsync and rename."""
    write_text(path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text through a partial file, fsync and rename."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
