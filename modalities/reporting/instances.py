"""The instances of a run as the report reads them: roles taken apart, in the order of the data's way."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modalities.errors import StoreError
from modalities.manifest import Manifest
from modalities.work import Upstream

NODES = (
    "ingestion",
    "heldout",
    "filtering.scores",
    "filtering",
    "deduplication.signatures",
    "deduplication.clusters",
    "deduplication",
    "tokenization.tokenizer",
    "tokenization",
    "tokenization.heldout",
    "packing",
    "pretraining.benchmarking",
    "pretraining",
    "conversion",
    "evaluation",
    "evaluation.baselines",
)
_ROLE = re.compile(r"(?P<variant>.+?)/(?P<node>[a-z]+(?:\.[a-z_]+)?)(?:\((?P<scope>.*)\))?", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """One finished instance and what it is in a variant."""

    variant: str
    node: str
    scope: str
    upstream: Upstream

    @property
    def manifest(self) -> Manifest:
        """Its record."""
        return self.upstream.manifest

    @property
    def key(self) -> str:
        """Its digest: equal keys are one instance, whatever the variants."""
        return self.upstream.manifest.key

    @property
    def info(self) -> Mapping[str, Any]:
        """What its stage wants the report to know."""
        return self.upstream.manifest.info

    @property
    def last_step(self) -> int:
        """The step at which a segment, a conversion or an evaluation stands."""
        digits = re.findall(r"\d+", self.scope.split("/")[0])
        return int(digits[-1]) if digits else 0


def read_instances(inputs: Mapping[str, Upstream]) -> list[Instance]:
    """Take `<variant>/<node>(<scope>)` apart; sort by variant as given, then by the data's way, scope and step."""
    found = []
    for role, upstream in inputs.items():
        match = _ROLE.fullmatch(role)
        if match is None:
            raise StoreError(f"reporting: {role}: expected a role <variant>/<node>(<scope>); make the plan again")
        found.append(
            Instance(variant=match["variant"], node=match["node"], scope=match["scope"] or "", upstream=upstream)
        )
    variants = {name: number for number, name in enumerate(dict.fromkeys(i.variant for i in found))}
    return sorted(found, key=lambda i: (variants[i.variant], _place(i.node), i.last_step, i.scope))


def _place(node: str) -> int:
    return NODES.index(node) if node in NODES else len(NODES)


def pick(instances: Iterable[Instance], node: str, *, scope: str | None = None) -> list[Instance]:
    """Return the instances of a node, or those of one scope."""
    return [i for i in instances if i.node == node and (scope is None or i.scope == scope)]


def first(instances: Iterable[Instance], node: str, *, scope: str | None = None) -> Instance | None:
    """Return the first instance of a node, or None."""
    return next(iter(pick(instances, node, scope=scope)), None)


def by_variant(instances: Sequence[Instance]) -> dict[str, list[Instance]]:
    """Group by variant, in order."""
    groups: dict[str, list[Instance]] = {}
    for instance in instances:
        groups.setdefault(instance.variant, []).append(instance)
    return groups


Groups = Mapping[str, Mapping[int, Sequence[Instance]]]
"""Arm -> seed -> instances."""


def last_evaluation(instances: Sequence[Instance], suite: str) -> Instance | None:
    """Return the evaluation of a suite at the last step that has one."""
    found = [i for i in pick(instances, "evaluation") if i.info.get("suite") == suite]
    return found[-1] if found else None
