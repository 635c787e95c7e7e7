"""Arms of a study: `ablations:` turned into one config per arm."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modalities import config as strict
from modalities.config import Tree
from modalities.errors import ConfigError, Invalid
from modalities.stages import AblationsConfig, RunConfig

Settings = Mapping[str, Tree]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One arm at one seed."""

    name: str
    labels: Mapping[str, Any]
    """Dotted key -> value that sets this arm apart; `seed` where seeds are given."""
    config: RunConfig


def arms(tree: Tree) -> list[Arm]:
    """Return every arm of a run, the baseline first; a run without ablations has one, called `base`.

    Raises `ConfigError` with the place of whatever does not fit, in the file or in an arm made from it.
    """
    study = strict.load(RunConfig, tree).ablations
    base = _without(tree, "ablations")
    if study is None:
        return [Arm(name="base", labels={}, config=strict.load(RunConfig, base))]
    try:
        combinations = list(_combinations(study))
        names = [_name(name, settings, study) for name, settings in combinations]
        _check_names(names, study)
    except Invalid as error:
        raise ConfigError(f"{tree.place(f'ablations.{error.key}')}: ablations.{error.key}: {error.message}") from None
    found = [_arm(base, name, settings) for name, (_, settings) in zip(names, combinations, strict=True)]
    if study.baseline is not None:
        found.sort(key=lambda arm: not _is_arm(arm.name, study.baseline or ""))
    return found


def _is_arm(name: str, arm: str) -> bool:
    return name == arm or re.fullmatch(re.escape(arm) + r",seed=-?\d+", name) is not None


def _arm(base: Tree, name: str, settings: Settings) -> Arm:
    tree, labels = base, {}
    for path, value in settings.items():
        tree = strict.override(tree, path, value)
        labels[path] = value.plain()
    return Arm(name=name, labels=labels, config=strict.load(RunConfig, tree))


def _combinations(study: AblationsConfig) -> Iterator[tuple[str | None, Settings]]:
    named: list[tuple[str | None, Settings]] = [(n, _mapping(n, t)) for n, t in study.variants.items()] or [(None, {})]
    grid = [[(path, value) for value in _values("grid", path, tree)] for path, tree in study.grid.items()]
    zipped = [[(path, value) for value in _values("zip", path, tree)] for path, tree in study.zip.items()]
    lengths = {len(column) for column in zipped}
    if len(lengths) > 1:
        raise Invalid("zip", f"expected lists of one length, got lengths {sorted(lengths)}")
    rows: list[tuple[tuple[str, Tree], ...]] = list(zip(*zipped, strict=True)) if zipped else [()]
    seeds: list[int | None] = list(study.seeds) or [None]
    for (name, settings), row, cell, seed in itertools.product(named, rows, itertools.product(*grid), seeds):
        where = next(iter(study.variants.values())).where if study.variants else "ablations.seeds"
        seeded = {} if seed is None else {path: Tree(seed, where, str(seed)) for path in study.seed_keys}
        yield name, {**settings, **dict(row), **dict(cell), **seeded}


def _values(kind: str, path: str, tree: Tree) -> Sequence[Tree]:
    if not isinstance(tree.value, list) or not tree.value:
        raise Invalid(f"{kind}.{path}", f"expected a list of values, got {tree.raw or 'a mapping'}; write [a, b]")
    return tree.value


def _mapping(name: str, tree: Tree) -> Settings:
    if tree.value is None:
        return {}
    if not isinstance(tree.value, dict):
        raise Invalid(f"variants.{name}", f"expected a mapping of dotted keys to values, got {tree.raw or 'a list'}")
    return tree.value


def _name(name: str | None, settings: Settings, study: AblationsConfig) -> str:
    swept = [*study.zip, *study.grid]
    short = {path: path.rpartition(".")[2] for path in swept}
    if len(set(short.values())) < len(short):
        short = {path: path for path in swept}
    parts = [] if name is None else [name]
    parts += [f"{short[path]}={_text(settings[path])}" for path in swept]
    if study.seeds:
        parts.append(f"seed={settings[study.seed_keys[0]].value}")
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "-", ",".join(parts)) or "base"


def _text(tree: Tree) -> str:
    if isinstance(tree.value, dict):
        return "+".join(f"{name}-{_text(child)}" for name, child in tree.value.items())
    if isinstance(tree.value, list):
        return "+".join(_text(child) for child in tree.value)
    return tree.raw


def _check_names(names: Sequence[str], study: AblationsConfig) -> None:
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise Invalid("grid", f"expected different arms, got {double!r} twice; remove the repeated value")
    if study.baseline is not None and not any(_is_arm(name, study.baseline) for name in names):
        raise Invalid("baseline", f"expected one of {', '.join(names)}, got {study.baseline!r}")


def _without(tree: Tree, name: str) -> Tree:
    assert isinstance(tree.value, dict)
    return Tree({k: v for k, v in tree.value.items() if k != name}, tree.where)
