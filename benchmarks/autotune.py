"""Networks at levels 2 and 3, tuned and not, each in a process of its own.

    python benchmarks/autotune.py [--cases alexnet,resnet50] [--levels 2,3] [--rounds 11] [--out F]

First one process a network tunes with an empty cache and says how long that took; then all sides
start from that cache, so that each also tells what a second process measures (nothing), compiles
(nothing) and waits for.  Prints the speed relative to the same level without tuning; a ratio within
the spread is no difference.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from interleave import Worker, compare, save, serve

CASES = "alexnet,resnet18,resnet50"
WITHOUT = {"off": "not tuned", "tune": "tuned"}


def work(case, side, threads):
    """Be the worker that runs one case at one level, tuned or not."""
    import cases

    import minigraph as mg

    level, tune = side.split()
    options = {"graph_opt_level": int(level), "num_threads": threads, "autotune": tune}
    options["autotune.budget"] = 120.0
    start = time.perf_counter()
    fn, args = cases.function(case, options)
    compiled = time.perf_counter() - start
    result = [fn(*args)]
    report = fn.report()
    setup = {
        "compile": compiled,
        "first call": time.perf_counter() - start - compiled,
        "measurements": mg.autotune.stats().measurements,
        "compilations": mg.jit.stats().compilations,
        "steps": len(report.steps),
        "arena": report.memory.arena_bytes,
        "loss": float(result[0]),
    }

    def step():
        result[0] = fn(*args)

    serve(setup, step, dict)


def measure(case, levels, rounds, threads):
    """Return seconds of every round and what setting up gave, by level and tuning."""
    me = str(Path(__file__))

    def worker(side):
        return Worker(me, "--worker", case, "--levels", side, "--threads", str(threads))

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINIGRAPH_CACHE_DIR"] = folder
        first = {}
        for side in [f"{level} {tune}" for level in levels for tune in WITHOUT]:
            process = worker(side)
            process.close()
            first[side] = process.setup
        sides = {side: worker(side) for side in first}
        return {"first process": first, **compare(sides, rounds)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--levels", default="2,3")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.levels, args.threads)
        return
    found = {}
    for case in args.cases.split(","):
        found[case] = measure(case, args.levels.split(","), args.rounds, args.threads)
        first = found[case]["first process"]
        for level in args.levels.split(","):
            base = found[case][f"{level} off"]["median"]
            for tune, name in WITHOUT.items():
                side = f"{level} {tune}"
                one = found[case][side]
                print(
                    f"{case}, level {level}, {name}: {one['median'] * 1e3:.1f} ms, "
                    f"{base / one['median']:.2f} of its speed, spread {one['spread']:.0%}; "
                    f"first compile {first[side]['compile']:.1f} s "
                    f"({first[side]['measurements']} measured); second process: "
                    f"compile {one['compile']:.2f} s, first call {one['first call']:.2f} s, "
                    f"{one['measurements']} measured, {one['compilations']} compiled",
                    flush=True,
                )
    if args.out:
        save(args.out, found, args.threads)


if __name__ == "__main__":
    main()
