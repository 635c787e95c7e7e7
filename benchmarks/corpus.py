"""Build a benchmark corpus from Debian documentation packages: `documents.jsonl.gz` with id, text, language, source.

    python benchmarks/corpus.py results/benchmark-corpus

Needs `apt-get` and `dpkg-deb` (no root) and about 290 MB of downloads; the corpus has some 26,000 English and 12,700 German
documents. Long pages are cut at paragraph ends into documents of 1,500 characters or a little more, about the mean
length of web text. Licences are those of the packages (MPL-2.0, GPL-2+, GPL-3+, GFDL, CC-BY-SA-3.0, PSF, PostgreSQL): for
local use, not to be passed on as a set.
"""

import argparse
import gzip
import json
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lxml.etree
import lxml.html

PACKAGES = {
    "libreoffice-help-en-us": "en",
    "libreoffice-help-de": "de",
    "gimp-help-en": "en",
    "gimp-help-de": "de",
    "kicad-doc-en": "en",
    "kicad-doc-de": "de",
    "debian-reference-en": "en",
    "debian-reference-de": "de",
    "debian-faq": "en",
    "debian-faq-de": "de",
    "developers-reference": "en",
    "developers-reference-de": "de",
    "maint-guide-de": "de",
    "debian-handbook": None,
    "installation-guide-amd64": None,
    "gnome-user-docs": None,
    "anarchism": "en",
    "manpages-de": "de",
    "postgresql-doc-15": "en",
    "python3.11-doc": "en",
}
"""Package -> language of its pages; None where the path says it."""
MIN_CHARACTERS = 200
PASSAGE_CHARACTERS = 1500
_ROFF = re.compile(r"\\f(?:.|\[\w*\]|\(..)|\\[&|^/,c]|\\\*?(?:\(..|\[[^\]]*\])")


def main() -> None:
    """Download, unpack, extract and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", nargs="*", default=list(PACKAGES))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    documents = []
    with tempfile.TemporaryDirectory() as temporary:
        for package in arguments.packages:
            found = list(documents_of(package, Path(temporary)))
            print(f"{package}: {len(found)} documents", flush=True)
            documents += found
    random.Random(1).shuffle(documents)
    path = arguments.folder / "documents.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=3) as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
    print(path)


def documents_of(package: str, temporary: Path) -> Iterator[dict[str, str]]:
    """Yield the documents of one package."""
    folder = temporary / package
    folder.mkdir()
    subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    archive = next(folder.glob("*.deb"))
    subprocess.run(["dpkg-deb", "-x", archive, folder / "root"], check=True)
    for path in sorted((folder / "root").rglob("*")):
        relative = path.relative_to(folder / "root")
        language = PACKAGES.get(package) or language_of(relative)
        if language is None or path.is_symlink() or not path.is_file():
            continue
        for number, text in enumerate(passages(lines_of(path))):
            yield {"id": f"{package}/{relative}#{number}", "text": text, "language": language, "source": package}


def language_of(path: Path) -> str | None:
    """Return en or de if a folder of the path says so."""
    for part in path.parts:
        if part.lower() in ("en", "en-us", "c"):
            return "en"
        if part.lower() in ("de", "de-de"):
            return "de"
    return None


def passages(lines: list[str]) -> Iterator[str]:
    """Yield texts of `PASSAGE_CHARACTERS` or a little more; short ends are left out."""
    passage: list[str] = []
    for line in lines:
        passage.append(line)
        if sum(map(len, passage)) >= PASSAGE_CHARACTERS:
            yield "\n".join(passage)
            passage = []
    if sum(map(len, passage)) >= MIN_CHARACTERS:
        yield "\n".join(passage)


def lines_of(path: Path) -> list[str]:
    """Return the distinct paragraphs of a page; without headings, lists of contents and marks of layout."""
    if path.suffix == ".html":
        tree = lxml.html.document_fromstring(path.read_bytes())
        found = [" ".join(node.text_content().split()) for node in tree.iter("p", "pre", "dd", "li")]
    elif path.suffix == ".page":  # Mallard, GNOME's XML
        nodes = lxml.etree.parse(path).iter("{*}p")
        found = [" ".join("".join(node.itertext()).split()) for node in nodes]
    elif path.suffix == ".gz" and "man" in path.parts:
        found = _paragraphs(gzip.decompress(path.read_bytes()).decode("utf-8", "replace"))
    else:
        return []
    return [line for line in dict.fromkeys(found) if line]


def _paragraphs(roff: str) -> list[str]:
    """Return the running text of a manual page."""
    paragraphs = [""]
    for line in roff.split("\n"):
        if line.startswith((".", "'")):
            paragraphs.append("")
        else:
            paragraphs[-1] += " " + _ROFF.sub("", line).replace("\\-", "-").replace("\\", "")
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


if __name__ == "__main__":
    main()
