"""`modalities store`: list, show, compare, verify, equate and remove what is finished."""

import argparse
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from modalities import manifest
from modalities.describe import differences, find
from modalities.errors import StoreError
from modalities.manifest import Manifest
from modalities.plan import PLANS, RUNS
from modalities.store import Store, list_files


def command(args: argparse.Namespace) -> int | None:
    """Run one verb of `modalities store`."""
    store = Store(args.store)
    if args.verb == "ls":
        for made in store.instances():
            if args.node is None or made.node == args.node:
                size = sum(made.files.values())
                print(f"{made.key[:12]}  {made.provenance.get('started', ''):24}  {size:>14,} B  {made.label}")
    elif args.verb == "show":
        print(json.dumps(dataclasses.asdict(find(store, args.digest)), indent=1))
    elif args.verb == "diff":
        print(_diff(find(store, args.a), find(store, args.b)))
    elif args.verb == "equate":
        print(_equate(store, find(store, args.a), find(store, args.b)))
    elif args.verb == "verify":
        problems = list(verify(store))
        print("\n".join(problems) if problems else f"{store.root}: all files, sizes and counts agree")
        return 1 if problems else None
    elif args.verb == "gc":
        _collect(store, really=args.yes)
    return None


def _diff(a: Manifest, b: Manifest) -> str:
    if a.node != b.node:
        return f"different nodes: {a.node} and {b.node}"
    mine, other = dataclasses.asdict(a), dataclasses.asdict(b)
    shown = ("version", "section", "numerics", "packages", "upstream", "content", "counts", "dropped")
    lines = [
        f"{path}: {old!r} -> {new!r}" for name in shown for path, old, new in differences(mine[name], other[name], name)
    ]
    return "\n".join(lines) if lines else "equal"


def _equate(store: Store, a: Manifest, b: Manifest) -> str:
    """Let what was made from A count as made from B: they must be equal in content."""
    if (a.node, a.content) != (b.node, b.content):
        raise StoreError(
            f"expected equal contents, got {a.node} {a.content} and {b.node} {b.content}; only equal instances can be equated"
        )
    changed = 0
    for made in list(store.instances()):
        upstream = {r: dict(u) for r, u in made.upstream.items()}
        for reference in upstream.values():
            if reference["node"] == a.node and reference["key"] == a.key:
                reference["key"] = b.key
        if upstream != {r: dict(u) for r, u in made.upstream.items()}:
            manifest.write(store.folder(made.node, made.key), dataclasses.replace(made, upstream=upstream))
            changed += 1
    return f"{changed} instance(s) made from {a.key[:12]} now name {b.key[:12]}"


def verify(store: Store) -> Iterator[str]:
    """Yield what is wrong: missing or changed files, unknown files, missing units, counts that do not add up."""
    for made in store.instances():
        yield from _verify_one(store.folder(made.node, made.key), made)
        for key in made.units:
            folder = store.folder(made.node, key, unit=True)
            try:
                yield from _verify_one(folder, manifest.read(folder))
            except StoreError as error:
                yield f"{made.label}: unit {key}: {error}"


def _verify_one(folder: Path, made: Manifest) -> Iterator[str]:
    try:
        made.check_counts()
    except StoreError as error:
        yield str(error)
    there = list_files(folder)
    for name, size in made.files.items():
        if name not in there:
            yield f"{folder / name}: expected {size:,} bytes, got no file"
        elif there[name] != size:
            yield f"{folder / name}: expected {size:,} bytes, got {there[name]:,}"
    for name in there.keys() - made.files.keys():
        yield f"{folder / name}: expected no such file; the manifest does not list it"


def _collect(store: Store, *, really: bool) -> None:
    """Remove instances and units that no plan of a kept run names, and the trash."""
    kept = _kept()
    going = [
        p
        for p in _folders(store)
        if (p.parent.name if p.parent.parent == store.root else p.parts[-4], p.name) not in kept
    ]
    size = sum(sum(list_files(p).values()) for p in going)
    trash = store.root / ".trash"
    for path in going:
        print(path)
        if really:
            shutil.rmtree(path)
    if really:
        shutil.rmtree(trash, ignore_errors=True)
    verb = "removed" if really else "would be removed (add --yes)"
    print(f"{len(going)} folder(s), {size:,} bytes, and the trash {verb}")


def _folders(store: Store) -> Iterator[Path]:
    for node in sorted(p for p in store.root.glob("*") if p.is_dir() and not p.name.startswith(".")):
        yield from (p for p in sorted(node.iterdir()) if p.name != "units")
        yield from sorted((node / "units").glob("*/*"))


def _kept() -> set[tuple[str, str]]:
    """Return (node, digest or unit key) of everything that the newest plan of a run in results/runs names."""
    kept: set[tuple[str, str]] = set()
    for path in PLANS.glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        if (RUNS / data["run"]).is_dir():
            for instance in data["instances"]:
                kept |= {(instance["node"], key) for key in (instance["digest"], *instance["units"])}
    return kept
