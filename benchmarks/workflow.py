"""Time and memory of the workflow layer: a no-op run, a plan of 24 arms, a DAG of 10,000 units.

    python benchmarks/workflow.py [--units 10000] [--finished PROJECT]

`--finished` names a project folder in which config/tiny.yaml ran to its end; without it the no-op row is left out. Prints a
JSON line per row; the last line is one object with all figures. Peers: none does the same; the limits are design targets.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CONFIG = """\
run: bench
ingestion: {sources: {a: {paths: [raw/*.jsonl], language: en}}}
filtering: {recipe: none}
tokenization: {train: {vocab_size: 300}}
packing: {sequence_length: 32}
pretraining:
  model: {dim: 16, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 32}
  total_steps: 40
  global_batch_tokens: 128
  learning_rate: 1e-2
  schedule: {name: wsd, warmup_steps: 2, decay_steps: 8}
  evaluate_every: 20
"""
STUDY = """\
ablations:
  grid:
    filtering.recipe: [none, fineweb, dclm-heuristics]
    pretraining.learning_rate: [1e-2, 2e-2, 3e-2, 4e-2]
  seeds: [0, 1]
"""


def timed(command: list[str], cwd: Path) -> dict[str, float]:
    """Run a command; return wall seconds, CPU seconds and peak memory in MiB. Raises if it fails."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mib": after.ru_maxrss // 1024,
    }


def project(folder: Path, config: str, files: int) -> Path:
    """Write a project with `files` small input files."""
    (folder / "raw").mkdir(parents=True)
    for number in range(files):
        (folder / "raw" / f"{number:05}.jsonl").write_text(json.dumps({"text": f"document {number}"}) + "\n")
    (folder / "mine.yaml").write_text(config)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--finished", type=Path)
    args = parser.parse_args()
    python = [sys.executable, "-m"]
    snakemake = [*python, "snakemake", "--snakefile", str(ROOT / "workflow/Snakefile")]
    snakemake += [
        "--workflow-profile",
        str(ROOT / "profiles/default"),
        "--configfile",
        "mine.yaml",
        "-n",
        "--quiet",
        "all",
    ]
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        study = project(Path(folder) / "study", CONFIG + STUDY, 4)
        rows["plan_24_arms"] = timed([*python, "modalities", "plan", "mine.yaml", "--json"], study)
        many = project(Path(folder) / "many", CONFIG, args.units)
        rows["dag_units_cold"] = timed(snakemake, many)
        rows["dag_units"] = timed(snakemake, many)
    if args.finished is not None:
        rows["no_op"] = timed([*python, "modalities", "run", "config/tiny.yaml"], args.finished)
    for name, row in rows.items():
        print(json.dumps({"name": name, **row}))
    print(
        json.dumps(
            {"name": "workflow", "units": args.units, **{f"{n}_{k}": v for n, r in rows.items() for k, v in r.items()}}
        )
    )


if __name__ == "__main__":
    main()
