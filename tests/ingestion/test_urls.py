"""Address lists, against datatrove's URLFilter."""

from pathlib import Path
from typing import Any

import pytest

from modalities.ingestion.urls import UrlFilter


@pytest.fixture(scope="module")
def urls(cache: Path) -> UrlFilter:
    """Return the filter; its lists are unpacked once."""
    return UrlFilter(cache)


def _addresses() -> list[str]:
    """Return addresses that touch every rule: listed ones, their neighbours, and each word of each list."""
    import tarfile

    from datatrove.utils._import_utils import ASSETS_PATH

    assets = Path(ASSETS_PATH)
    found = [
        "https://example.org/",
        "http://a.b.co.uk/x?y=z",
        "http://127.0.0.1/",
        "http://[::1]/",
        "//x",
        "nothing",
        "http://",
    ]
    with tarfile.open(assets / "url_filterblacklistsv0_3_0.tar.gz", "r:gz") as archive:
        for name in ("urls", "domains"):
            member = archive.extractfile(name)
            assert member is not None
            lines = [
                line.decode().strip()
                for i, line in enumerate(member)
                if i < 20 or i % (40_000 if name == "domains" else 200) == 0
            ]
            for line in lines:
                found += [
                    f"http://{line}",
                    line,
                    f"https://www.{line}/a",
                    f"https://{line}x.org/",
                    f"https://example.org/{line}",
                ]
    words = [
        (assets / f"{n}.txt").read_text().split("\n") for n in ("banned_words", "soft_banned_words", "banned_subwords")
    ]
    for word in {word for part in words for word in part}:
        for form in (word, word.upper(), word.replace(" ", "-")):
            found += [
                f"https://example.org/{form}",
                f"https://example.org/x{form}x/",
                f"https://{form}.example.org/anus/{form}",
            ]
    return found


def test_decisions_and_reasons_equal_datatroves(
    urls: UrlFilter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tldextract
    from datatrove.data import Document
    from datatrove.pipeline.filters import url_filter

    offline = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
    monkeypatch.setattr(tldextract, "TLDExtract", lambda: offline)
    monkeypatch.setattr(url_filter.URLFilter, "_requires_dependencies", [])
    monkeypatch.setattr(url_filter, "cached_assets_path", lambda **_: tmp_path)
    monkeypatch.setattr(url_filter, "safely_create_file", lambda path, make: make())
    theirs = url_filter.URLFilter()
    reasons = set()
    for address in _addresses():
        kept: Any = theirs.filter(Document(text="", id="", metadata={"url": address}))
        reason = None if kept is True else kept[1]
        assert urls.reason(address) == reason, address
        reasons.add(reason)
    every = {None, "domain", "subdomain", "url", "hard_blacklisted", "soft_blacklisted", "blacklisted_subword"}
    assert reasons == every


def test_blocked_documents_are_counted_by_rule(ingest: Any, write: Any) -> None:
    write(
        "1.jsonl", '{"text": "a", "url": "http://0-1sex.com/"}\n{"text": "b", "url": "http://a.org/"}\n{"text": "c"}\n'
    )
    done = ingest(url_filter=True)
    assert done.texts == ["b", "c"] and done.reasons == ["blocked_url:domain"]
    assert done.rejects[0]["excerpt"] == "http://0-1sex.com/"


def test_strange_addresses_are_no_error(urls: UrlFilter) -> None:
    for address in (
        "http://[",
        "http://]:80/",
        "a" * 100_000,
        "http://\ud800/",
        "\x00",
        "http://xn--/",
        "http://..../",
        "ü.ü",
    ):
        urls.reason(address)
