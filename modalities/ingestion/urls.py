"""datatrove's URL filter: the same lists, rules, order and reasons, without its 600 MB of Python sets.

The 4.6 million domains are kept as sorted 64-bit hashes (36 MB, mapped) in a cache that is in no digest and is made anew, in
seconds, where it is missing. A domain that is on no list is taken for one that is with a probability of 3e-13.
"""

import os
import re
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

SOFT_WORD_THRESHOLD = 2
_ARCHIVE = "url_filterblacklistsv0_3_0.tar.gz"
_SEPARATORS = re.compile(r"[^a-zA-Z0-9]+")
_BLOCK_BYTES = 1 << 22


class UrlFilter:
    """Tell which rule a web address breaks, if any."""

    def __init__(self, cache: Path) -> None:
        import ahocorasick
        import tldextract

        assets = _assets()
        folder = cache / f"url-filter-{version('datatrove')}"
        self._domains = _hashes(folder, assets, "domains")
        self._urls = _hashes(folder, assets, "urls")
        self._banned = _words(assets / "banned_words.txt")
        self._soft = _words(assets / "soft_banned_words.txt")
        self._subwords = ahocorasick.Automaton()
        for index, word in enumerate(sorted(_words(assets / "banned_subwords.txt"))):
            self._subwords.add_word(word, index)
        self._subwords.make_automaton()
        # No suffix list is fetched and none is cached: the one that ships with tldextract decides.
        self._extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())

    def reason(self, url: str) -> str | None:
        """Return `domain`, `subdomain`, `url`, `hard_blacklisted`, `soft_blacklisted`, `blacklisted_subword`, or None."""
        parts = self._extract(url)
        if _contains(self._domains, parts.top_domain_under_public_suffix):
            return "domain"
        if _contains(self._domains, parts.fqdn):
            return "subdomain"
        return "url" if _contains(self._urls, url) else self._word_reason(url)

    def _word_reason(self, url: str) -> str | None:
        words = set(_SEPARATORS.split(url))
        if not words.isdisjoint(self._banned):
            return "hard_blacklisted"
        if len(words & self._soft) >= SOFT_WORD_THRESHOLD:
            return "soft_blacklisted"
        if next(self._subwords.iter(_normalize(url)), None) is not None:
            return "blacklisted_subword"
        return None


def _assets() -> Path:
    """Return datatrove's folder of lists without importing datatrove, which costs a second."""
    spec = find_spec("datatrove")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "assets"


def _normalize(text: str) -> str:
    return _SEPARATORS.sub("", text).lower()


def _words(path: Path) -> set[str]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return {_normalize(line) for line in lines if not line.startswith("#")}


def _contains(hashes: Any, text: str) -> bool:
    wanted = np.uint64(xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")))
    index = int(np.searchsorted(hashes, wanted))
    return index < len(hashes) and bool(hashes[index] == wanted)


def _hashes(folder: Path, assets: Path, name: str) -> Any:
    """Return the sorted hashes of a list's lines, from the cache or from the archive in datatrove's wheel."""
    path = folder / f"{name}.npy"
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(assets / _ARCHIVE, "r:gz") as archive:
        member = archive.extractfile(name)
        assert member is not None
        hashes = np.fromiter(_line_hashes(member), np.uint64)
    hashes.sort()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.save(file, hashes, allow_pickle=False)
    partial.replace(path)
    return hashes


def _line_hashes(file: Any) -> Iterator[int]:
    hashed = xxhash.xxh3_64_intdigest
    for line in file:
        if not line.startswith(b"#"):
            yield hashed(line.strip())
