"""From bytes of a page to text: UTF-8, else what the page declares, else what its bytes look like, else nothing."""

import codecs
import re

_META = re.compile(rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_PARAMETER = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})", re.IGNORECASE)
_HEAD_BYTES = 4096
_LATIN = {"ascii", "iso8859-1"}
"""Browsers read these as windows-1252, and so do we: pages that say so mean that."""


def decode(data: bytes, content_type: str) -> tuple[str, str] | None:
    """Return a page's text and its charset, or None where none fits. The text can be written as UTF-8."""
    for charset in _candidates(data, content_type):
        try:
            text = data.decode(charset)
            text.encode("utf-8")
        except (UnicodeError, LookupError):
            continue
        return text.removeprefix("\ufeff"), charset
    return None


def _candidates(data: bytes, content_type: str) -> list[str]:
    """Return names to try in order. Detection costs most and is asked only if UTF-8 fails."""
    if _is_utf8(data):
        return ["utf-8"]
    head = data[:_HEAD_BYTES]
    found = [m.group(1) for m in (_PARAMETER.search(content_type),) if m]
    found += [m.group(1).decode("ascii", "replace") for m in (_XML.search(head), _META.search(head)) if m]
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        found.insert(0, "utf-16")
    names = [name for label in found if (name := _known(label)) is not None]
    return [*dict.fromkeys(names), *_detected(data)]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _known(label: str) -> str | None:
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    return "cp1252" if name in _LATIN else name


def _detected(data: bytes) -> list[str]:
    import cchardet

    label = cchardet.detect(data)["encoding"]
    name = _known(label) if label is not None else None
    return [] if name is None else [name]
