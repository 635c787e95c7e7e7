"""Every way to get a config wrong has an error that names file, line, key, what was got and what was expected."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from modalities import config
from modalities.config import Tree, key
from modalities.errors import ConfigError, Invalid


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = key(0.5, help="A rate.")
    kind: Literal["one", "two"] = key("one", help="A kind.")
    threads: int = key(1, kind="numerics", help="Threads.")
    log_every: int = key(1, kind="runtime", help="Lines.")
    late: int = key(7, help="Added later.", neutral=7)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise Invalid("rate", f"expected 0 or more, got {self.rate}; raise it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    name: str = key(help="A name.")
    count: int = key(3, help="A count.")
    flag: bool = key(False, help="A flag.")
    maybe: float | None = key(None, help="Perhaps a number.")
    items: tuple[str, ...] = key((), help="Some items.")
    path: Path | None = key(None, help="A path.")
    inner: Inner = key(factory=Inner, help="A section.")
    many: dict[str, Inner] = key(factory=dict, help="Sections by name.")
    raw: Tree = key(factory=lambda: Tree({}, "default"), help="Kept raw.")


def load(text: str) -> Outer:
    return config.load(Outer, config.parse(text, "mine.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\ninner:\n  rat: 1", "mine.yaml:3: inner.rat: unknown key; did you mean 'rate'?"),
        ("name: a\nname: b", "mine.yaml:2: name: given twice (first at mine.yaml:1); keep one of them"),
        ("count: 3", "mine.yaml:1: name: missing; A name."),
        ("name: a\ncount: x", "mine.yaml:2: count: expected a whole number, got 'x'"),
        ("name: a\ncount: 2.5", "mine.yaml:2: count: expected a whole number, got 2.5"),
        (
            "name: no",
            "mine.yaml:1: name: expected text, got False (written as 'no'); YAML reads the bare word no as false",
        ),
        ("name: 12", "mine.yaml:1: name: expected text, got 12; write it in quotes"),
        ("name: a\nflag: yes", "mine.yaml:2: flag: expected true or false, got the word 'yes'"),
        ("name: a\nflag: 1", "mine.yaml:2: flag: expected true or false, got 1"),
        ("name: a\ninner: {kind: tow}", "inner.kind: expected one of 'one', 'two', got 'tow'; did you mean 'two'?"),
        ("name: a\ninner:\n  rate: -1", "mine.yaml:3: inner.rate: expected 0 or more, got -1.0; raise it"),
        ("name: a\nmany: {b: {rate: x}}", "mine.yaml:2: many.b.rate: expected a number, got 'x'"),
        ("name: a\nitems: b", "mine.yaml:2: items: expected a list, got 'b'"),
        ("name: a\ninner: 3", "mine.yaml:2: inner: expected a mapping, got 3"),
        ("name: [a", "not valid YAML"),
        ("name: !!python/object:os.system a", "is not allowed"),
        ("base: &b {name: a}\n<<: *b", "mine.yaml:2: merge keys (<<) are not supported"),
        ("name: a\ncount: 010", "mine.yaml:2: count: expected a whole number, got '010'"),
        ("name: a\ncount: 1:30", "mine.yaml:2: count: expected a whole number, got '1:30'"),
        ("- a", "mine.yaml:1: config: expected a mapping, got a list"),
    ],
)
def test_errors_name_place_key_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(text)
    assert message in str(error.value)


def test_numbers_are_read_as_people_mean_them() -> None:
    got = load("name: a\ncount: 1e3\nmaybe: 3e-4\ninner: {rate: 1}\npath: x/y\nitems: [a, b]")
    assert (got.count, got.maybe, got.inner.rate, got.path, got.items) == (1000, 3e-4, 1.0, Path("x/y"), ("a", "b"))
    assert load("name: 'no'").name == "no"
    assert load("name: a\ncount: 5_000_000").count == 5_000_000


def test_plain_and_build_are_inverse() -> None:
    got = load("name: a\nmany: {b: {rate: 0.25}}\nmaybe: 1e-5\npath: p\nraw: {x: [1, no]}")
    again = config.build(Outer, config.plain(got))
    assert config.plain(again) == config.plain(got)
    assert again.many == got.many


def test_select_separates_the_three_kinds() -> None:
    got = load("name: a\ninner: {threads: 4, log_every: 9}")
    assert config.select(got, "result")["inner"] == {"rate": 0.5, "kind": "one"}
    assert config.select(got, "numerics") == {"inner": {"threads": 4}}
    assert config.select(got, "runtime") == {"inner": {"log_every": 9}}


def test_a_new_key_moves_no_digest_but_a_changed_value_does() -> None:
    assert "late" not in config.select(Inner(), "result")
    assert config.select(Inner(late=8), "result")["late"] == 8


def test_extends_puts_the_parent_first_and_refuses_circles(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("name: a\ncount: 1\ninner: {rate: 0.1, kind: two}\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ncount: 2\ninner: {rate: 0.2}\n")
    got = config.load(Outer, config.read(tmp_path / "mine.yaml"))
    assert (got.name, got.count, got.inner.rate, got.inner.kind) == ("a", 2, 0.2, "two")
    (tmp_path / "base.yaml").write_text("extends: mine.yaml\n")
    with pytest.raises(ConfigError, match="leads back"):
        config.read(tmp_path / "mine.yaml")


def test_overrides_from_the_command_line_are_typed_like_the_file() -> None:
    tree = config.parse("name: a\ninner: {rate: 1}", "mine.yaml")
    tree = config.merge(tree, config.from_python({"inner": {"rate": "3e-4", "kind": "two"}}, "--config"))
    assert config.load(Outer, tree).inner == Inner(rate=3e-4, kind="two")
    bad = config.merge(tree, config.from_python({"inner": {"rate": "no"}}, "--config"))
    with pytest.raises(ConfigError, match=r"--config:?1?: inner\.rate: expected a number, got False"):
        config.load(Outer, bad)


def test_the_command_line_starts_without_heavy_packages() -> None:
    code = (
        "import sys; from modalities import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "cli.main(['check', 'config/demo.yaml'])\n"
        "cli.main(['plan', 'config/demo.yaml'])\n"
        "heavy = {'torch', 'transformers', 'spacy', 'polars', 'snakemake', 'pyarrow', 'numba', 'datatrove'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
