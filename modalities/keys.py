"""Every config key with type, default, kind and meaning, as Markdown: `modalities keys`, and config/README.md."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modalities import config
from modalities.filtering.config import Recipe
from modalities.stages import RunConfig

HEAD = """\
# Config keys

Made by `modalities keys`; a test compares. A config is one YAML file; `config/demo.yaml` is a complete one, and every file here
is checked by a test. Kinds: **result** keys are in the digest of what reads them: a change makes that node, and what follows it,
anew. **numerics** keys change bits but not meaning: they are recorded beside the result and start nothing anew. **runtime** keys
change neither. `extends: other.yaml` takes another file's values first.

`filtering.rules` and `filtering.sources.<name>.rules` override values of the recipe; its keys stand under `filtering.rules`.
"""


def markdown() -> str:
    """Return the text of config/README.md."""
    lines = [HEAD]
    for field in dataclasses.fields(RunConfig):
        rows = list(_rows(field.name))
        lines += ["", f"## {field.name}", "", field.metadata["help"], ""]
        if rows:
            lines += ["| key | type | default | kind | meaning |", "|---|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _rows(section: str) -> Iterator[str]:
    for path, hint, field in config.walk(RunConfig):
        if not path.startswith(f"{section}."):
            continue
        if not _is_section(hint):
            yield _row(path, hint, field)
        if path == "filtering.rules":
            yield from (_row(f"{path}.{p}", h, f) for p, h, f in config.walk(Recipe) if not _is_section(h))


def _row(path: str, hint: Any, field: "dataclasses.Field[Any]") -> str:
    text = field.metadata["help"].replace("|", "\\|")
    return f"| `{path}` | {_type(hint)} | {_default(field)} | {field.metadata['kind']} | {text} |"


def _is_section(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) and hint is not config.Tree


def _type(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    names = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path", Any: "anything"}
    if hint in names:
        return names[hint]
    if origin is typing.Literal:
        return ", ".join(f"`{a}`" for a in args)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(_type(a) for a in args if a is not type(None)))
    if origin in (tuple, list):
        return f"list of {_type(args[0])}"
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return f"name: {_type(args[1])}"
    return "mapping" if dataclasses.is_dataclass(hint) or hint is config.Tree else str(hint)


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        value = config.plain(field.default)
        shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        return f"`{shown}`" if len(shown) <= 40 else f"`{shown[:37]}...`".replace("|", "\\|")
    return "" if field.default_factory is not dataclasses.MISSING else "required"
