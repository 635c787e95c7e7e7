"""Build a benchmark corpus from Debian documentation packages: `documents.jsonl.gz` with id, text, language, source.

    python benchmarks/corpus.py results/benchmark-corpus

Needs `apt-get` and `dpkg-deb` (no root) and about 60 MB of downloads. Licences are those of the packages (MPL-2.0, GPL-2+,
CC-BY-SA-3.0, PSF, PostgreSQL): for local use, not to be passed on as a set. Prose is `documents.prose`, without code blocks.
"""

import argparse
import gzip
import json
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lxml.html

PACKAGES = {
    "libreoffice-help-en-us": "en",
    "libreoffice-help-de": "de",
    "debian-handbook": None,
    "installation-guide-amd64": None,
    "postgresql-doc-15": "en",
    "python3.11-doc": "en",
    "anarchism": "en",
    "gimp-help-en": "en",
    "gimp-help-de": "de",
}
"""Package -> language of its pages; None where the path says it."""
MIN_CHARACTERS = 200


def main() -> None:
    """Download, unpack, extract and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", nargs="*", default=list(PACKAGES))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    documents = []
    with tempfile.TemporaryDirectory() as temporary:
        for package in arguments.packages:
            found = list(pages(package, Path(temporary)))
            print(f"{package}: {len(found)} documents", flush=True)
            documents += found
    random.Random(1).shuffle(documents)
    path = arguments.folder / "documents.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=3) as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
    print(path)


def pages(package: str, temporary: Path) -> Iterator[dict[str, str]]:
    """Yield the documents of one package."""
    folder = temporary / package
    folder.mkdir()
    subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    archive = next(folder.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", archive, folder / "root"], check=True)
    for path in sorted((folder / "root").rglob("*.html")):
        relative = path.relative_to(folder / "root")
        language = PACKAGES.get(package) or language_of(relative)
        if language is None or path.is_symlink():
            continue
        text = text_of(path.read_bytes())
        if len(text) >= MIN_CHARACTERS:
            yield {"id": f"{package}/{relative}", "text": text, "language": language, "source": package}


def language_of(path: Path) -> str | None:
    """Return en or de if a folder of the path says so."""
    for part in path.parts:
        if part.lower() in ("en", "en-us"):
            return "en"
        if part.lower() in ("de", "de-de"):
            return "de"
    return None


def text_of(page: bytes) -> str:
    """Return the paragraphs of a page, one a line; headings, lists and tables of contents are left out, code is not."""
    tree = lxml.html.document_fromstring(page)
    paragraphs = (" ".join(node.text_content().split()) for node in tree.iter("p", "pre", "dd", "li"))
    lines = [line for line in paragraphs if line]
    return "\n".join(dict.fromkeys(lines))


if __name__ == "__main__":
    main()
