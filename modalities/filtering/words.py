"""Words of chunks of text between blanks, as spaCy's blank tokenizers split them, which datatrove uses.

spaCy looks at a chunk through regular expressions that tell letters apart by case only, and through a list of special cases.
So chunks of equal `shape` (letters and marks, runs of letters shortened) that hold no word of a special case are split at the
same places: spaCy is asked once per shape. Chunks with digits, apostrophes or other scripts are always asked about. Cost: 5 us
where the shape is known, else 60 us, on a busy core of 2026.
"""

import re
from typing import Any, cast

_LETTERS = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u00ff"
_MARKS = '.,;:!?()[]{}"\u201c\u201d\u201e\u201a\u00ab\u00bb\u2026\u2013\u2014-/&+*=<>|%$#@~^\\'
_CASES = {
    code: "a" if chr(code).islower() else "A" for code in range(256) if re.match(f"[{_LETTERS}]", chr(code)) is not None
}
_LONG_RUN = re.compile("([aA])[aA]+([aA]{2})")
_SHAPE = re.compile(f"[aA{re.escape(_MARKS)}]+")
_PARTS = re.compile(f"[{_LETTERS}]+|[^{_LETTERS}]")
_ANY_RUN = re.compile(r"[^\W\d_]+")
_MAX_SHAPES = 50_000
_SHAPED_LANGUAGES = frozenset({"da", "de", "en", "es", "it", "nb", "nl", "pt", "sv"})
"""Languages for which the tests compare shapes with spaCy. Others ask it about every chunk."""

Split = tuple[list[str], bool]
"""Words of a chunk, and whether spaCy's last pass acted on it."""
Places = tuple[list[tuple[int, int]], bool]
"""Between which parts (runs of letters, single marks) each word of a shape lies; the second as in `Split`."""


class Words:
    """spaCy's blank tokenizer of one language, its view of tokens, and which special cases act across words."""

    def __init__(self, language: str) -> None:
        import spacy
        from datatrove.utils.word_tokenizers import SpaCyTokenizer, load_word_tokenizer
        from spacy.lang.lex_attrs import is_punct

        tokenizer = load_word_tokenizer(language)
        assert type(tokenizer) is SpaCyTokenizer
        self.punctuation_marks = frozenset(tokenizer.tokenizer.get_pipe("sentencizer").punct_chars)
        self.is_punct = is_punct
        self._nlp = cast(Any, spacy.blank(tokenizer.language))
        # Only token texts are asked for: without attributes a new chunk costs a third less.
        self._nlp.vocab.lex_attr_getters.clear()
        self._unmatched = _without_last_pass(self._nlp)
        self._special = _acting_special_cases(self._nlp)
        self._shaped = tokenizer.language in _SHAPED_LANGUAGES
        self._special_runs = {run for rule in self._nlp.tokenizer.rules for run in _ANY_RUN.findall(rule)}
        self._shapes: dict[str, Places | None] = {}

    def split(self, chunks: list[str]) -> tuple[list[list[str]], list[bool]]:
        """Return the words of each chunk, and whether spaCy's last pass acted on it."""
        words: list[list[str]] = [[] for _ in chunks]
        fragile = [False] * len(chunks)
        ask: list[int] = []
        learn: list[tuple[int, str, list[str]]] = []
        for i, (chunk, shape) in enumerate(zip(chunks, _shapes_of(chunks), strict=True)):
            if not self._shaped or (shape not in self._shapes and _SHAPE.fullmatch(shape) is None):
                ask.append(i)
                continue
            parts = _PARTS.findall(chunk)
            if not self._special_runs.isdisjoint(parts):
                ask.append(i)
            elif shape not in self._shapes:
                learn.append((len(ask), shape, parts))
                ask.append(i)
            elif (places := self._shapes[shape]) is None:
                ask.append(i)
            else:
                words[i], fragile[i] = ["".join(parts[a:b]) for a, b in places[0]], places[1]
        answers = self._ask([chunks[i] for i in ask])
        for i, answer in zip(ask, answers, strict=True):
            words[i], fragile[i] = answer
        for place, shape, parts in learn:
            self._shapes[shape] = _places(parts, *answers[place])
        if len(self._shapes) > _MAX_SHAPES:
            self._shapes.clear()
        return words, fragile

    def _ask(self, chunks: list[str]) -> list[Split]:
        if not chunks:
            return []
        parts = _tokens(self._nlp, self._nlp.tokenizer, chunks)
        fragile = [False] * len(chunks)
        suspects = [i for i, chunk in enumerate(chunks) if (m := self._special.search(chunk)) and m.group() != chunk]
        if suspects:
            plain = _tokens(self._nlp, self._unmatched, [chunks[i] for i in suspects])
            for i, words in zip(suspects, plain, strict=True):
                fragile[i] = words != parts[i]
        return list(zip(parts, fragile, strict=True))


def _shapes_of(chunks: list[str]) -> list[str]:
    return _LONG_RUN.sub(r"\1\2", "\n".join(chunks).translate(_CASES)).split("\n")


def _places(parts: list[str], words: list[str], fragile: bool) -> Places | None:
    """Return between which parts each word lies; None where words end elsewhere."""
    edges, end = {0: 0}, 0
    for number, part in enumerate(parts, start=1):
        end += len(part)
        edges[end] = number
    places, end = [], 0
    for word in words:
        start, end = end, end + len(word)
        if start not in edges or end not in edges:
            return None
        places.append((edges[start], edges[end]))
    return (places, fragile) if end == sum(map(len, parts)) else None


def _tokens(nlp: Any, tokenizer: Any, chunks: list[str]) -> list[list[str]]:
    """Return the tokens of each chunk. Line ends between chunks keep spaCy's special cases from joining neighbours."""
    from spacy.attrs import IDX, LENGTH  # type: ignore[import-not-found]

    text = "\n".join(chunks)
    with nlp.memory_zone():
        spans = tokenizer(text).to_array([IDX, LENGTH]).tolist()
    parts: list[list[str]] = [[]]
    for start, length in spans:
        token = text[start : start + length]
        if token == "\n":
            parts.append([])
        elif word := token.strip():
            parts[-1].append(word)
    assert len(parts) == len(chunks), (len(parts), len(chunks))
    return parts


class _Switch:
    """Hides affixes from spaCy while special cases are loaded, so that its last pass has nothing to look for."""

    def __init__(self) -> None:
        self.on = False

    def wrap(self, function: Any, nothing: Any) -> Any:
        return lambda text: function(text) if self.on else nothing


def _without_last_pass(nlp: Any) -> Any:
    from spacy.tokenizer import Tokenizer  # type: ignore[import-not-found]

    own, switch = nlp.tokenizer, _Switch()
    tokenizer = Tokenizer(
        nlp.vocab,
        {chunk: rule for chunk, rule in own.rules.items() if " " not in chunk},
        switch.wrap(own.prefix_search, None),
        switch.wrap(own.suffix_search, None),
        switch.wrap(own.infix_finditer, ()),
        own.token_match,
        own.url_match,
    )
    switch.on = True
    return tokenizer


def _acting_special_cases(nlp: Any) -> re.Pattern[str]:
    """Return a pattern for special cases that the last pass looks for and that differ from what it finds."""
    from spacy.symbols import ORTH  # type: ignore[import-not-found]
    from spacy.tokenizer import Tokenizer

    own = nlp.tokenizer
    plain = Tokenizer(
        nlp.vocab, None, own.prefix_search, own.suffix_search, own.infix_finditer, own.token_match, own.url_match
    )
    acting = [
        chunk
        for chunk, rule in own.rules.items()
        if chunk.strip()
        and (own.find_prefix(chunk) or own.find_suffix(chunk) or own.find_infix(chunk))
        and [token.text for token in plain(chunk)] != [part[ORTH] for part in rule]
    ]
    return re.compile("|".join(map(re.escape, sorted(acting, key=len, reverse=True))) or r"(?!)")


def covers(language: str) -> bool:
    """Return whether the memo gives this language's words: spaCy's own rule-based tokenizer is assigned to it."""
    import spacy
    from datatrove.utils.word_tokenizers import SpaCyTokenizer, load_word_tokenizer
    from spacy.tokenizer import Tokenizer

    try:
        tokenizer = load_word_tokenizer(language)
    except (ValueError, ImportError):
        return False
    if (
        type(tokenizer) is not SpaCyTokenizer
        or tokenizer.config is not None
        or tokenizer.language in ("ko", "th", "vi")
    ):
        return False
    return type(spacy.blank(tokenizer.language).tokenizer) is Tokenizer
