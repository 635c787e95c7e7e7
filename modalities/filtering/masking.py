"""Masking of e-mail and IPv4 addresses with datatrove's expressions. Replacements cycle within a document, so that a text is
masked alike whatever stands before it (datatrove cycles within a task).
"""

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modalities.filtering.config import Pii


def mask(texts: pa.Array, pii: Pii) -> tuple[pa.Array, int]:
    """Return masked texts, null where nothing was masked, and how many documents were. Null texts stay null."""
    suspects = pa.array(np.zeros(len(texts), np.bool_))
    if pii.emails:
        suspects = pc.or_(suspects, pc.fill_null(pc.match_substring(texts, "@"), False))
    if pii.ips:
        suspects = pc.or_(suspects, pc.fill_null(pc.match_substring_regex(texts, r"\d\.\d{1,3}\.\d"), False))
    out: list[str | None] = [None] * len(texts)
    num_masked = 0
    for row in np.flatnonzero(suspects.to_numpy(zero_copy_only=False)).tolist():
        text = texts[row].as_py()
        masked = mask_text(text, pii)
        if masked != text:
            out[row] = masked
            num_masked += 1
    return pa.array(out, pa.large_string()), num_masked


def mask_text(text: str, pii: Pii) -> str:
    """Return one document with addresses replaced."""
    formatter = _formatter(pii)
    formatter.emails_replacer._replace_i = formatter.ip_replacer._replace_i = 0
    return str(formatter.format(text))


@functools.lru_cache(maxsize=4)
def _formatter(pii: Pii) -> Any:
    from datatrove.pipeline.formatters.pii import PIIFormatter

    return PIIFormatter(
        remove_emails=pii.emails,
        remove_ips=pii.ips,
        only_remove_public_ips=pii.public_ips_only,
        email_replacement=pii.email_replacements,
        ip_replacement=pii.ip_replacements,
    )
