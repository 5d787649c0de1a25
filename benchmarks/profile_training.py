"""Tune a training step, and keep what it tells of itself: report, profile, caches.

    python benchmarks/profile_training.py resnet50 --precision bfloat16 --out FOLDER

FOLDER gets report.txt, profile.txt, trace.json (for chrome://tracing) and step.cache.
"""

import argparse
import time
from pathlib import Path

import minigraph as mg
from minigraph.bench.cases import NETWORKS, PRECISIONS, case
from minigraph.bench.ours import LIBRARY, training

CALLS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--threads", type=int, help="default: one per core")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    subject = case(given.network, given.batch_size, given.quick, given.device)
    options = {"graph_opt_level": 3, "autotune.budget": given.budget}
    if given.threads:
        options["num_threads"] = given.threads
    cg = mg.comp_graph(given.device, {**options, **PRECISIONS[given.precision].options})
    step, batches = training(cg, subject, subject.network(LIBRARY))
    batch = next(batches)
    seconds = sum(step.report().seconds.values())
    print(f"{subject.title}, {given.precision}: compiled in {seconds:.1f} s")
    for _ in range(CALLS):
        begin = time.perf_counter()
        value = float(step(*batch))  # waits for the device
        print(f"loss {value:.6g} after {time.perf_counter() - begin:.4f} s", flush=True)
    profile = step.profile(*batch)
    (given.out / "report.txt").write_text(f"{step.report()}\n")
    (given.out / "profile.txt").write_text(f"{profile}\n")
    profile.to_chrome_trace(given.out / "trace.json")
    step.save_cache(given.out / "step.cache", "all")
    print(profile)


if __name__ == "__main__":
    main()
