"""The command line: a thin layer over the functions that the Snakemake rules call too."""

import argparse
import importlib.metadata
import logging
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modalities import doctor
from modalities.config import Tree
from modalities.errors import InterruptedRunError, ModalitiesError, StoreError
from modalities.stages import NODES, STAGES

if TYPE_CHECKING:
    from modalities.plan import Plan

Commands = argparse._SubParsersAction  # argparse has no public name for it

EPILOG = """\
a run, from nothing:   modalities run config/demo.yaml
before it:             modalities check config/mine.yaml; modalities plan config/mine.yaml
one stage alone:       modalities filtering config/mine.yaml --scope help
one key for once:      modalities run config/mine.yaml --set pretraining.learning_rate=3e-4
The same run through Snakemake: snakemake --configfile config/mine.yaml
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (0 good, 1 failed, 2 the user can mend it)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:2] == ["packing", "show"]:
        words[:2] = ["show-step"]
    # argparse would give everything behind the config to snakemake, and with it --set.
    own = words[: words.index("--")] if "--" in words and words[:1] == ["run"] else words
    args = _parser().parse_args(own)
    if args.command == "run":
        args.snakemake = words[len(own) + 1 :]
    level = logging.WARNING if args.command in ("check", "plan", "config") else logging.INFO
    logging.basicConfig(level=level, stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        _refuse_other_package()
        status: int | None = args.function(args)
    except InterruptedRunError as error:
        print(f"modalities: {error}", file=sys.stderr)
        return 75
    except ModalitiesError as error:
        print(f"modalities: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status or 0


def _refuse_other_package() -> None:
    """PyPI's `modalities` has the same import name: with both, Python loads whichever was installed last."""
    try:
        found = importlib.metadata.version("modalities")
    except importlib.metadata.PackageNotFoundError:
        return
    raise StoreError(
        f"the environment also holds the package `modalities` {found}, which has the same import name; "
        "keep the two apart: pip uninstall modalities, or use a second environment for it"
    )


# --- commands --------------------------------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> None:
    from modalities import study
    from modalities.stages import expand

    started = time.perf_counter()
    arms = study.arms(_tree(args))
    for arm in arms:
        num_nodes = sum(1 for _ in expand(arm.config))
    print(f"{args.config}: good: {len(arms)} arm(s), {num_nodes} nodes each ({time.perf_counter() - started:.2f} s)")


def _plan(args: argparse.Namespace) -> None:
    from modalities import describe
    from modalities import plan as planning

    plan = planning.resolve(_tree(args))
    print(describe.as_json(plan) if args.json else describe.as_text(plan))


def _config(args: argparse.Namespace) -> None:
    from modalities import describe

    print(describe.config_text(_tree(args)))


def _run(args: argparse.Namespace) -> int:
    from modalities import running

    return running.run(args.config, args.set, _snakemake_arguments(args))


def _snakemake_arguments(args: argparse.Namespace) -> list[str]:
    arguments: list[str] = []
    for name in ("until", "forcerun"):
        if getattr(args, name):
            arguments += [f"--{name}", *getattr(args, name)]
    if args.dry_run:
        arguments.append("--dry-run")
    if args.cores is not None:
        arguments += ["--cores", args.cores]
    if args.workflow_profile is not None:
        arguments += ["--workflow-profile", str(args.workflow_profile)]
    arguments += args.snakemake
    return arguments


def _status(args: argparse.Namespace) -> None:
    from modalities import plan as planning
    from modalities import status

    print(status.text(planning.resolve(_tree(args))))


def _stage(args: argparse.Namespace) -> None:
    from modalities import job
    from modalities import plan as planning
    from modalities.store import Store

    plan = planning.resolve(_tree(args))
    if args.scope is not None or args.arm is not None:
        _check_choice(plan, args)
    for instance in plan.instances.values():
        if NODES[instance.node].stage != args.command or (args.node is not None and instance.node != args.node):
            continue
        if (args.scope is not None and instance.scope != args.scope) or (
            args.arm is not None and args.arm not in instance.arms
        ):
            continue
        if args.force:
            store = Store(plan.store)
            store.discard(instance.node, instance.digest)
            for key in instance.units:
                store.discard(instance.node, key, unit=True)
        made = job.run_instance(plan, instance)
        print(f"{instance.name}: {Store(plan.store).folder(instance.node, made.key)}")


def _check_choice(plan: "Plan", args: argparse.Namespace) -> None:
    mine = [i for i in plan.instances.values() if NODES[i.node].stage == args.command]
    scopes = sorted({i.scope for i in mine if i.scope})
    if args.scope is not None and args.scope not in scopes:
        raise StoreError(f"--scope: expected one of {', '.join(scopes) or 'none'}, got {args.scope!r}")
    if args.arm is not None and args.arm not in plan.arms:
        raise StoreError(f"--arm: expected one of {', '.join(plan.arms)}, got {args.arm!r}")


def _job(args: argparse.Namespace) -> int:
    from modalities import job
    from modalities import plan as planning

    plan = planning.read(args.plan)
    digest, _, batch = args.work.partition(".")
    instance = plan.find(args.node, digest)
    try:
        if batch:
            job.run_batch(plan, instance, int(batch))
        else:
            job.run_instance(plan, instance)
    except ModalitiesError:
        raise
    except Exception:
        traceback.print_exc()
        print(f"modalities: {instance.name} failed; the lines above say where", file=sys.stderr)
        return 1
    return 0


def _store(args: argparse.Namespace) -> int | None:
    from modalities import maintenance

    return maintenance.command(args)


def _archive_seeds(args: argparse.Namespace) -> None:
    from modalities import archive

    count = archive.write(args.store, args.target)
    print(f"{args.target}: {count} entries; name it as `analysis.archive` in the config of a study with one seed")


def _keys(args: argparse.Namespace) -> None:
    from modalities import keys

    print(keys.markdown(), end="")


def _export(args: argparse.Namespace) -> None:
    from modalities import export
    from modalities import plan as planning

    export.documents(planning.resolve(_tree(args)), source=args.source, arm=args.arm, target=args.target)


def _generate(args: argparse.Namespace) -> None:
    from modalities.conversion import generate

    found = generate.generate(
        args.model,
        prompt=args.prompt,
        tokens=args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
    )
    print(args.prompt + found[0])


def _import_pbin(args: argparse.Namespace) -> None:
    from modalities.tokenization.pbin import import_pbin

    args.target.parent.mkdir(parents=True, exist_ok=True)
    made = import_pbin(args.source, args.target, repair=args.repair)
    print(f"{args.target}.bin, .idx, .json: {made.documents:,} documents, {made.tokens:,} tokens ({made.dtype})")


def _show(args: argparse.Namespace) -> None:
    from modalities import export
    from modalities import plan as planning

    export.show_step(planning.resolve(_tree(args)), arm=args.arm, step=args.step)


def _tree(args: argparse.Namespace) -> Tree:
    from modalities import running

    return running.tree_of(args.config, args.set)


# --- the parser ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="modalities",
        description="One YAML file and one command from raw text to trained, converted, evaluated language models and a report.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    _add_config_command(commands, "check", _check, "Say whether a config can be used; nothing runs.")
    plan = _add_config_command(commands, "plan", _plan, "Show what would run, what is there already, and why.")
    plan.add_argument(
        "--json", action="store_true", help="one JSON object: totals, and nodes with node, digest, state, why"
    )
    _add_config_command(commands, "config", _config, "Print the resolved config and where each value comes from.")
    keys = commands.add_parser("keys", help="Print every config key with type, default and meaning.")
    keys.set_defaults(function=_keys)
    _add_run(commands)
    _add_config_command(
        commands, "status", _status, "Show what is done, running, waiting and failed, from files alone."
    )
    for stage in STAGES:
        _add_stage(commands, stage)
    _add_store(commands)
    export = _add_config_command(
        commands, "export", _export, "Write the documents that one source is trained on as JSONL."
    )
    export.add_argument("--source", required=True, help="name of the source")
    export.add_argument("--arm", help="arm of a study; by default the first")
    export.add_argument("--target", type=Path, required=True, help="file to write: .jsonl, .jsonl.gz or .jsonl.zst")
    show = _add_config_command(
        commands, "show-step", _show, "Print the documents of one training step (also: packing show)."
    )
    show.add_argument("--step", type=int, required=True, help="step, counted from 0")
    show.add_argument("--arm", help="arm of a study; by default the first")
    _add_archive(commands)
    _add_generate(commands)
    _add_import_pbin(commands)
    doctor.add_parser(commands)
    job = commands.add_parser("job", help="Make one instance or batch of a plan; what the Snakemake rules call.")
    job.add_argument("--plan", type=Path, required=True, help="plan file in results/plans")
    job.add_argument("--node", required=True, choices=list(NODES), metavar="NODE", help="node of the plan")
    job.add_argument("--work", required=True, help="digest of the instance, or digest.batch")
    job.set_defaults(function=_job)
    return parser


def _add_config_command(
    commands: "Commands[argparse.ArgumentParser]", name: str, function: object, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.add_argument(
        "config", type=Path, nargs="?", default=Path("config/demo.yaml"), help="config file (%(default)s)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one dotted key; may be repeated"
    )
    parser.set_defaults(function=function)
    return parser


def _add_run(commands: "Commands[argparse.ArgumentParser]") -> None:
    run = _add_config_command(
        commands, "run", _run, "Run everything that is missing, through Snakemake, with a progress display."
    )
    run.add_argument("--until", nargs="+", metavar="RULE", help="stop after these rules, such as tokenization")
    run.add_argument("--forcerun", nargs="+", metavar="RULE", help="compute these again, such as pretraining")
    run.add_argument("--dry-run", "-n", action="store_true", help="only show what would run")
    run.add_argument("--cores", help="cores to use (all)")
    run.add_argument("--workflow-profile", type=Path, help="profile folder, such as profiles/slurm")
    run.epilog = "After -- come arguments for snakemake."


def _add_stage(commands: "Commands[argparse.ArgumentParser]", stage: str) -> None:
    nodes = [node for node in NODES.values() if node.stage == stage]
    text = " ".join(node.help for node in nodes)
    parser = _add_config_command(commands, stage, _stage, text)
    parser.description = f"{text} Runs the nodes of this stage here, without Snakemake; what they read must be there."
    parser.add_argument("--node", choices=[node.name for node in nodes], help="only this node")
    parser.add_argument("--scope", help="only this scope: a source, a segment (0-100), a step, or step/suite")
    parser.add_argument("--arm", help="only this arm of a study")
    parser.add_argument("--force", action="store_true", help="compute again what is there")


def _add_store(commands: "Commands[argparse.ArgumentParser]") -> None:
    store = commands.add_parser("store", help="List, show, compare, verify, equate and remove finished work.")
    store.add_argument("--store", type=Path, default=Path("results/store"), help="store folder (%(default)s)")
    verbs = store.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("ls", help="list instances")
    listing.add_argument("--node", help="only this node")
    show = verbs.add_parser("show", help="print a manifest")
    show.add_argument("digest", help="digest, or its first digits")
    for name, text in (("diff", "say in what two instances differ"), ("equate", "let what follows A be used after B")):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("a", help="digest, or its first digits")
        verb.add_argument("b", help="digest, or its first digits")
    verbs.add_parser("verify", help="check files against manifests and units against counts")
    gc = verbs.add_parser("gc", help="remove what no kept run refers to")
    gc.add_argument("--yes", action="store_true", help="really remove; otherwise only say what would go")
    store.set_defaults(function=_store)


def _add_archive(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "Write what finished studies found of the variance over seeds, for studies with one seed."
    archive = commands.add_parser("archive-seeds", help=text, description=text)
    archive.add_argument("--store", type=Path, default=Path("results/store"), help="store folder (%(default)s)")
    archive.add_argument(
        "--target", type=Path, default=Path("results/seed-archive.json"), help="file to write (%(default)s)"
    )
    archive.set_defaults(function=_archive_seeds)


def _add_generate(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "Let a converted model continue a prompt."
    generate = commands.add_parser("generate", help=text, description=text)
    generate.add_argument("model", type=Path, help="model folder, such as results/runs/demo/base/conversion")
    generate.add_argument("prompt", help="text to continue")
    generate.add_argument("--tokens", type=int, default=100, help="most tokens to generate (%(default)s)")
    generate.add_argument(
        "--temperature", type=float, default=0.8, help="0 always takes the most likely token (%(default)s)"
    )
    generate.add_argument("--top-k", type=int, help="sample among this many most likely tokens")
    generate.add_argument("--top-p", type=float, help="sample among the tokens that together have this probability")
    generate.add_argument("--seed", type=int, default=0, help="seed of the sampling (%(default)s)")
    generate.set_defaults(function=_generate)


def _add_import_pbin(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "Write a packed file of the package Modalities as a Megatron token shard."
    pbin = commands.add_parser("import-pbin", help=text, description=text)
    pbin.add_argument("source", type=Path, help="the .pbin file; its index is checked, and never unpickled")
    pbin.add_argument("target", type=Path, help="the shard without suffix, such as shards/web for shards/web.bin")
    pbin.add_argument(
        "--repair",
        action="store_true",
        help="place documents by their lengths: for files with the merge's wrong offsets",
    )
    pbin.set_defaults(function=_import_pbin)


if __name__ == "__main__":
    raise SystemExit(main())
