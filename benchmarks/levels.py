"""The levels beside each other, each in a process of its own: MegBrain's table for minigraph.

    python benchmarks/levels.py [--cases a*b*c,resnet50] [--levels 0,2,3] [--rounds 11] [--out FILE]

Prints for each case the speed relative to level 0, the spread of the samples, the steps and the
seconds of the first call; a ratio within the spread is no difference.
"""

import argparse
import time
from pathlib import Path

from interleave import Worker, compare, save, serve

CASES = "a*b*c,a*b+c,mlp,alexnet,resnet18,resnet50"


def work(case, level, threads):
    """Be the worker that runs one case at one level."""
    import cases

    start = time.perf_counter()
    options = {"graph_opt_level": level, "num_threads": threads, "autotune": "off"}
    fn, args = cases.function(case, options)
    result = [fn(*args)]
    report = fn.report()
    setup = {
        "first call": time.perf_counter() - start,
        "steps": len(report.steps),
        "arena": report.memory.arena_bytes,
        "seconds": report.seconds,
    }

    def step():
        result[0] = fn(*args)

    serve(setup, step, dict)


def measure(case, levels, rounds, threads):
    """Return seconds of every round and what setting up gave, by level."""
    me = str(Path(__file__))
    workers = {
        level: Worker(me, "--worker", case, "--levels", level, "--threads", str(threads))
        for level in levels
    }
    return compare(workers, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--levels", default="0,1,2,3")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, int(args.levels), args.threads)
        return
    levels = args.levels.split(",")
    found = {}
    for case in args.cases.split(","):
        found[case] = measure(case, levels, args.rounds, args.threads)
        base = found[case][levels[0]]["median"]
        print(f"{case}: level {levels[0]} takes {base * 1e3:.3f} ms")
        for level in levels:
            one = found[case][level]
            print(
                f"  level {level}: {base / one['median']:7.1%} of its speed, "
                f"spread {one['spread']:.0%}, {one['steps']} steps, "
                f"arena {one['arena'] / 2**20:.0f} MiB, first call {one['first call']:.1f} s",
                flush=True,
            )
    if args.out:
        save(args.out, found, args.threads)


if __name__ == "__main__":
    main()
