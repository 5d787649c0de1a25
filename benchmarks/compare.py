"""Run the comparisons that the documents show.

    python benchmarks/compare.py CASE [NETWORK ...] [OPTION ...]
    python benchmarks/compare.py --list

`compare.py CASE --help` explains a case and its options.
"""

import argparse
import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

from comparisons import compile_trace, growth, nccl, profiling, scaling, start, steps, sweep

from minigraph.bench.cases import NETWORKS


class Case(NamedTuple):
    """A comparison.

    run            takes the parsed arguments; its docstring says what it prints
    add_arguments  adds the options of the case
    networks       the default networks to train; empty if the case trains none
    """

    run: Callable[[argparse.Namespace], None]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    networks: Sequence[str] = ()


LARGE = ("resnet18", "resnet50", "alexnet")
CASES = {
    "start": Case(start.start, start.add_arguments, ("mlp", "resnet18", "resnet50")),
    "growth": Case(growth.growth, growth.add_arguments),
    "trace": Case(compile_trace.trace, compile_trace.add_arguments),
    "memory-limit": Case(steps.memory_limit, steps.add_arguments, ("resnet50",)),
    "bfloat16": Case(steps.bfloat16, steps.add_arguments, LARGE),
    "without-onednn": Case(steps.without_onednn, steps.add_arguments, LARGE),
    "profile": Case(profiling.profile, profiling.add_arguments, ("resnet50",)),
    "nccl": Case(nccl.exchange, nccl.add_arguments),
    "sweep": Case(sweep.sweep, sweep.add_arguments),
    "scaling": Case(scaling.scaling, scaling.add_arguments, ("mlp", "resnet18")),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the cases")
    commands = parser.add_subparsers(metavar="CASE")
    lines = []
    for name, case in CASES.items():
        about = inspect.getdoc(case.run) or ""
        first = about.partition("\n")[0]
        lines.append(f"{name:18} {first}")
        raw = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=first, description=about, formatter_class=raw)
        if case.networks:
            help = f"of {', '.join(NETWORKS)}; default: {', '.join(case.networks)}"
            keywords = {"default": [*case.networks], "type": _network, "help": help}
            command.add_argument("networks", nargs="*", metavar="NETWORK", **keywords)
        case.add_arguments(command)
        command.set_defaults(run=case.run)
    args = parser.parse_args(arguments)
    if "run" not in args:
        print("\n".join(lines))
        return
    args.run(args)


def _network(name: str) -> str:
    if name not in NETWORKS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(NETWORKS)}")
    return name


if __name__ == "__main__":
    main()
