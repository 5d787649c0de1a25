"""Tune a prediction with constant parameters, and show how long its layers and kernels take.

    python benchmarks/profile_prediction.py resnet50-1 --threads 2

Names are those of `minigraph bench --models inference`: a network, and images in a batch.
"""

import argparse
import statistics
import time

import minigraph as mg
from minigraph.bench.cases import PREDICTIONS, case
from minigraph.bench.ours import prediction

CALLS = 40


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=PREDICTIONS)
    parser.add_argument("--threads", type=int, help="default: one per core")
    parser.add_argument("--quick", action="store_true", help="smaller images")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning")
    given = parser.parse_args()
    options = {"graph_opt_level": 3, "autotune.budget": given.budget}
    if given.threads:
        options["num_threads"] = given.threads
    subject = case(given.name, quick=given.quick)
    predict, batches = prediction(mg.comp_graph("cpu", options), subject, freeze=True)
    batch = next(batches)
    times = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        predict(*batch)
        times.append((time.perf_counter() - begin) * 1e3)
    print(f"a call {statistics.median(times):.2f} ms, the shortest {min(times):.2f} ms")
    print(predict.profile(*batch))


if __name__ == "__main__":
    main()
