"""Tune a training step, and write its report, profile and caches."""

import argparse
import time
from pathlib import Path

import minigraph as mg
from minigraph.bench.cases import PRECISIONS, case
from minigraph.bench.ours import LIBRARY, training

CALLS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--threads", type=int, help="default: one per core")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")


def profile(args: argparse.Namespace) -> None:
    """Tune training steps, and write the report, profile and caches of each.

    DIR/NETWORK gets report.txt, profile.txt, trace.json (for chrome://tracing) and step.cache.
    """
    options = {"graph_opt_level": 3, "autotune.budget": args.budget}
    if args.threads:
        options["num_threads"] = args.threads
    cg = mg.comp_graph(args.device, {**options, **PRECISIONS[args.precision].options})
    for network in args.networks:
        folder = args.out / network
        folder.mkdir(parents=True, exist_ok=True)
        subject = case(network, args.batch_size, args.quick, args.device)
        step, batches = training(cg, subject, subject.network(LIBRARY))
        batch = next(batches)
        seconds = sum(step.report().seconds.values())
        print(f"{subject.title}, {args.precision}: compiled in {seconds:.1f} s")
        for _ in range(CALLS):
            begin = time.perf_counter()
            value = float(step(*batch))  # waits for the device
            print(f"loss {value:.6g} after {time.perf_counter() - begin:.4f} s", flush=True)
        times = step.profile(*batch)
        (folder / "report.txt").write_text(f"{step.report()}\n")
        (folder / "profile.txt").write_text(f"{times}\n")
        times.to_chrome_trace(folder / "trace.json")
        step.save_cache(folder / "step.cache", "all")
        print(times)
