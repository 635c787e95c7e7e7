"""Simulate studies whose truth is known, and count how often the verdicts are right.

    python benchmarks/verdicts.py [--studies 10000] [--processes 2] [--residual 0.5]

Cells: {2, 3, 5, 10 seeds} x {seed deviation / item error 0.2, 1, 5} x {correlation of paired seeds 0, 0.5} x {normal, t with 4
degrees of freedom} x {1, 3 arms against the baseline}. The item error of a difference is 1, from 120 items per arm;
`--residual` is the deviation of one seed on one item relative to that of an item. Three truths per cell: no difference,
exactly the margin (false equivalents), and the difference that an oracle that knows all variances finds with 90 % power. The last
line is one JSON object; rows before it are cells. About 10 minutes on two cores at full size.
"""

import argparse
import dataclasses
import itertools
import json
import os
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy import stats

from modalities.reporting import verdicts

ITEMS = 120
ALPHA = 0.05
VALID = 0.94
CHUNK = 1000
MARGIN_ERRORS = 3.3
"""The margin in oracle standard errors: large enough that equivalence can be shown."""
POWER = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting of the simulation."""

    seeds: int
    ratio: float
    correlation: float
    heavy: bool
    arms: int
    residual: float

    @property
    def error(self) -> float:
        """Standard error of a difference that an oracle would state."""
        return float(
            np.sqrt(1 + self.residual**2 / self.seeds + 2 * self.ratio**2 * (1 - self.correlation) / self.seeds)
        )


def cells(residual: float) -> list[Cell]:
    """Return all cells."""
    axes = itertools.product((2, 3, 5, 10), (0.2, 1.0, 5.0), (0.0, 0.5), (False, True), (1, 3))
    return [Cell(seeds=s, ratio=r, correlation=c, heavy=h, arms=a, residual=residual) for s, r, c, h, a in axes]


def simulate(cell: Cell, *, studies: int, generator: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Return values [studies, S, I] of the baseline and the other arms, with no true difference."""

    def noise(*shape: int) -> np.ndarray[Any, Any]:
        if cell.heavy:
            return generator.standard_t(4, shape) / np.sqrt(2)
        return generator.standard_normal(shape)

    deviation = np.sqrt(ITEMS / 2)
    difficulty = 3 * deviation * noise(studies, 1, ITEMS)
    shared = np.sqrt(cell.correlation) * noise(studies, cell.seeds, 1)
    arms = []
    for _ in range(cell.arms + 1):
        seeds = cell.ratio * (shared + np.sqrt(1 - cell.correlation) * noise(studies, cell.seeds, 1))
        items = difficulty + deviation * noise(studies, 1, ITEMS)
        arms.append(seeds + items + cell.residual * deviation * noise(studies, cell.seeds, ITEMS))
    return arms


def simple_half_widths(arms: list[np.ndarray[Any, Any]], k: int, level: float) -> list[np.ndarray[Any, Any]]:
    """Return half widths of t over paired seeds, t over two samples of seeds, and t over items."""
    base, arm = arms[0], arms[k]
    seeds, items = base.shape[-2], base.shape[-1]
    quantile = 1 - level / 2
    paired = (arm.mean(-1) - base.mean(-1)).std(-1, ddof=1) / np.sqrt(seeds)
    two = np.sqrt((arm.mean(-1).var(-1, ddof=1) + base.mean(-1).var(-1, ddof=1)) / seeds)
    over_items = (arm.mean(-2) - base.mean(-2)).std(-1, ddof=1) / np.sqrt(items)
    return [
        stats.t.ppf(quantile, seeds - 1) * paired,
        stats.t.ppf(quantile, 2 * seeds - 2) * two,
        stats.t.ppf(quantile, items - 1) * over_items,
    ]


def shifted(spread: verdicts.Spread, by: float) -> verdicts.Spread:
    """Return a spread as it would be if the true difference were larger by `by`; its variances do not change."""
    return dataclasses.replace(spread, difference=spread.difference + by)


def count(cell: Cell, *, studies: int, generator: np.random.Generator) -> dict[str, Any]:
    """Count, over some studies of a cell, what the report of the cell needs."""
    arms = simulate(cell, studies=studies, generator=generator)
    spreads = verdicts.spreads(arms, same_seeds=True)
    margin, effect = MARGIN_ERRORS * cell.error, (stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(POWER)) * cell.error
    margins, lower = [margin] * cell.arms, [False] * cell.arms

    def outcomes(by: float) -> np.ndarray[Any, Any]:
        decided: np.ndarray[Any, Any] = verdicts.decide(
            [shifted(s, by) for s in spreads], margins, alpha=ALPHA, lower_is_better=lower
        )
        return decided

    null = outcomes(0.0)
    tiny = [
        1e-9 * cell.error
    ] * cell.arms  # no equivalence by the margin: what an effect is found with, whatever its size
    found = verdicts.decide([shifted(s, effect) for s in spreads], tiny, alpha=ALPHA, lower_is_better=lower) == "better"
    simple = [simple_half_widths(arms, k, ALPHA) for k in range(1, cell.arms + 1)]
    covered = [[np.abs(s.difference) <= h[m] for s, h in zip(spreads, simple, strict=True)] for m in range(3)]

    def simple_found(method: int) -> np.ndarray[Any, Any]:
        def rejects(level: float) -> np.ndarray[Any, Any]:
            widths = [simple_half_widths(arms, k, level)[method] for k in range(1, cell.arms + 1)]
            return np.stack([s.difference + effect > w for s, w in zip(spreads, widths, strict=True)], -1)

        return verdicts.holm(rejects, alpha=ALPHA, hypotheses=cell.arms)

    return {
        "studies": studies,
        "covered": sum(float((~verdicts.differs(s, ALPHA)).sum()) for s in spreads) / cell.arms,
        "false_verdicts": float(np.isin(null, ["better", "worse"]).any(-1).sum()),
        "false_equivalent": float((outcomes(margin) == "equivalent").any(-1).sum()),
        "equivalent": float((null == "equivalent").mean(-1).sum()),
        "found": float(found.mean(-1).sum()),
        "paired": float(spreads[0].paired.sum()),
        "simple_covered": [float(np.sum(c)) / cell.arms for c in covered],
        "simple_found": [float(simple_found(m).mean(-1).sum()) for m in range(3)],
    }


def measure(cell: Cell, studies: int) -> dict[str, Any]:
    """Return one row of the report."""
    generator = np.random.default_rng(zlib.crc32(repr(cell).encode()))
    sizes = [min(CHUNK, studies - first) for first in range(0, studies, CHUNK)]
    parts = [count(cell, studies=size, generator=generator) for size in sizes]
    total = {name: np.sum([np.asarray(p[name], np.float64) for p in parts], axis=0) / studies for name in parts[0]}
    valid = [float(f) for f, c in zip(total["simple_found"], total["simple_covered"], strict=True) if c >= VALID]
    best = max(valid) if valid else None
    row = dataclasses.asdict(cell) | {name: np.round(total[name], 4).tolist() for name in total if name != "studies"}
    return row | {"power_ratio": None if best is None else round(float(total["found"]) / best, 4)}


def main() -> None:
    """Run all cells and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=10_000, help="studies per cell")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--residual", type=float, default=0.5, help="noise of one seed on one item, over that of an item"
    )
    options = parser.parse_args()
    started, rows = time.monotonic(), []
    with ProcessPoolExecutor(options.processes) as pool:
        todo = cells(options.residual)
        for row in pool.map(measure, todo, [options.studies] * len(todo)):
            rows.append(row)
            print(json.dumps(row), flush=True)
    ratios = [row["power_ratio"] for row in rows if row["power_ratio"] is not None]
    summary = {
        "name": "verdicts",
        "studies_per_cell": options.studies,
        "residual": options.residual,
        "coverage_low": min(row["covered"] for row in rows),
        "false_verdicts": max(row["false_verdicts"] for row in rows),
        "false_equivalent": max(row["false_equivalent"] for row in rows),
        "power_ratio_low": min(ratios),
        "cells": len(rows),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
