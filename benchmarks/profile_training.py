"""Tune a training step, and keep what it tells of itself: report, profile, caches.

    python benchmarks/profile_training.py resnet50 --precision bfloat16 --out FOLDER

FOLDER gets report.txt, profile.txt, trace.json (for chrome://tracing) and step.cache.
"""

import argparse
import time
from pathlib import Path

import minigraph as mg
from minigraph import ops, optim
from minigraph.bench.cases import NETWORKS, PRECISIONS, case
from minigraph.bench.ours import LIBRARY

CALLS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller images")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    subject = case(given.network, given.batch_size, given.quick, given.device, given.precision)
    options = {"graph_opt_level": 3, "autotune.budget": given.budget}
    cg = mg.comp_graph(given.device, {**options, **PRECISIONS[given.precision].options})
    batch = subject.data()[0]
    x, labels = (mg.input(n, y.shape, y.dtype) for n, y in zip(("x", "labels"), batch, strict=True))
    net = subject.network(LIBRARY)
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters(), lr=1e-4).minimize(loss), **net.updates()}
    begin = time.perf_counter()
    step = cg.compile([x, labels], loss, updates)
    print(f"{subject.title}, {given.precision}: compiled in {time.perf_counter() - begin:.1f} s")
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
