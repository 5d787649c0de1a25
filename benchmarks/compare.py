"""Measure what the documents compare.

    python benchmarks/compare.py CASE [OPTION ...]
    python benchmarks/compare.py --list

`compare.py CASE --help` explains a case and its options.
"""

import argparse
import inspect

from comparisons import compile_trace, growth, memory, scaling, start, steps

CASES = {
    "start": (start.add_arguments, start.start),
    "growth": (growth.add_arguments, growth.growth),
    "trace": (compile_trace.add_arguments, compile_trace.trace),
    "memory": (memory.add_arguments, memory.memory),
    "memory-limit": (steps.add_arguments, steps.memory_limit),
    "saved-activations": (steps.add_arguments, steps.saved_activations),
    "bfloat16": (steps.add_arguments, steps.bfloat16),
    "without-onednn": (steps.add_arguments, steps.without_onednn),
    "scaling": (scaling.add_arguments, scaling.scaling),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the cases")
    cases = parser.add_subparsers(metavar="CASE")
    lines = []
    for name, (add_arguments, run) in CASES.items():
        about = inspect.getdoc(run) or ""
        first = about.partition("\n")[0]
        lines.append(f"{name:18} {first}")
        raw = argparse.RawDescriptionHelpFormatter
        each = cases.add_parser(name, help=first, description=about, formatter_class=raw)
        add_arguments(each)
        each.set_defaults(run=run)
    asked = parser.parse_args(arguments)
    if "run" not in asked:
        print("\n".join(lines))
        return
    asked.run(asked)


if __name__ == "__main__":
    main()
