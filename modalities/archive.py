"""`modalities archive-seeds`: what finished studies in a store found of the variance over seeds.

The file is an input of later reports (`analysis.archive`), by content: a report never looks at the store, so the same config and
the same archive give the same report, whatever else was run since.
"""

from pathlib import Path
from typing import Any

from modalities.manifest import Manifest, write_json
from modalities.reporting.config import ARCHIVE_FORMAT
from modalities.store import Store


def collect(store: Store) -> list[dict[str, Any]]:
    """Return entries of all studies with several seeds. Of reports that share a training only the one with most seeds counts."""
    reports = [m for m in store.instances() if m.node == "reporting" and m.info.get("seed_spread")]
    reports.sort(key=lambda m: (-_weight(m), m.key))
    used: set[str] = set()
    entries = []
    for report in reports:
        trainings = {str(v["key"]) for v in report.upstream.values() if v["node"] == "pretraining"}
        headline = report.info["headline"]
        if trainings & used or not {"num_parameters", "tokens"} <= set(headline):
            continue
        used |= trainings
        size = {"parameters": int(headline["num_parameters"]), "tokens": int(headline["tokens"])}
        for metric, found in report.info["seed_spread"].items():
            entries.append({"metric": metric, **size, **found, "run": report.info["run"]})
    return sorted(entries, key=lambda e: (e["metric"], e["parameters"], e["tokens"], e["run"]))


def _weight(report: Manifest) -> int:
    return max(int(found["df"]) for found in report.info["seed_spread"].values())


def write(store: Path, target: Path) -> int:
    """Write the archive of a store and return the number of entries."""
    entries = collect(Store(store))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"format": ARCHIVE_FORMAT, "entries": entries})
    return len(entries)
