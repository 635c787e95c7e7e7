"""What people see: `results/runs/<run>/<arm>/<stage>`, links into the store, and `report.html` beside them."""

import contextlib
import os
import uuid
from pathlib import Path

from modalities.manifest import NAME
from modalities.plan import Instance, Plan


def update(plan: Plan, instance: Instance) -> None:
    """Link a finished instance into every arm that uses it."""
    target = plan.store / instance.node / instance.digest
    if instance.node == "reporting":
        for path in (p for p in target.iterdir() if p.name != NAME):
            _link(plan.folder / path.name, path)
        return
    for arm in instance.arms:
        place = plan.folder / arm / instance.node
        if instance.node == "conversion":
            _link_conversion(plan, instance, arm, target)
        elif instance.scope:
            _link(place / instance.scope.replace("/", "-"), target)
        else:
            _link(place, target)


def _link_conversion(plan: Plan, instance: Instance, arm: str, target: Path) -> None:
    """`conversion` holds the files of the last step, and a folder for each other step."""
    steps = [int(i.scope) for i in plan.instances.values() if i.node == "conversion" and arm in i.arms]
    place = plan.folder / arm / "conversion"
    if int(instance.scope) != max(steps):
        _link(place / instance.scope, target)
        return
    names = {path.name for path in target.iterdir()}
    if place.is_dir() and not place.is_symlink():
        for old in place.iterdir():
            if old.is_symlink() and old.name not in names and not old.name.isdigit():
                old.unlink()
    for name in sorted(names):
        _link(place / name, target / name)


def _link(place: Path, target: Path) -> None:
    """Put a relative link in place by one rename; folders from earlier forms of the run give way."""
    if place.parent.is_symlink():
        place.parent.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(target.absolute(), place.parent.absolute())
    with contextlib.suppress(OSError):
        if place.readlink() == Path(relative):
            return
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
    draft.symlink_to(relative)
    try:
        draft.replace(place)
    except OSError:
        draft.unlink()
        raise
