"""Print how good choices are that are made for sizes which were not measured.

    python benchmarks/other_sizes.py [--measure] [--batches 2 4 8] [--size 64] [--threads 2]

Every convolution and product that the folder of the caches has measurements of is left out once,
and its algorithm is chosen by what was measured of the others: by the model, by the nearest sizes
alone, and by the heuristic, in blocks of channels where there are such.  --measure first tunes the
steps of the networks at each batch size.
The mean is the geometric one; nine of ten choices take no more times the best than the last column.
"""

import argparse
from dataclasses import replace

import numpy as np

import minigraph as mg
from minigraph import options
from minigraph.autotune.measurement import ProblemTable, table
from minigraph.autotune.prediction import family_of, predicted, sizes_of
from minigraph.bench.cases import case
from minigraph.bench.ours import LIBRARY, training
from minigraph.cache import Measurements

NETWORKS = ("alexnet", "resnet18", "resnet50")
CLOSE = 0.03  # slower than the best by no more than this


def measure(batches, size, threads):
    """Tune a training step of each network at each batch size."""
    for name in NETWORKS:
        for batch in batches:
            subject = replace(case(name, batch), shape=(3, size, size))
            given = {"graph_opt_level": 3, "autotune.budget": 600, "num_threads": threads}
            training(mg.comp_graph(options=given), subject, subject.network(LIBRARY))


def timed(known):
    """Return a table's seconds by candidate, in its order."""
    return {m.key: m.seconds for m in known.measurements if m.seconds and not m.error}


def measured(folder, threads):
    """Return the tables with rivals in a folder, by what those have in common that are compared."""
    families = {}
    for entry in Measurements(folder).entries("onednn"):
        found = table(entry)
        if entry.subject.startswith("reorder") or f", {threads} thread" not in entry.subject:
            continue
        if isinstance(found, ProblemTable) and len({name for name, _ in timed(found)}) > 1:
            alike = family_of(found.subject), len(sizes_of(found.subject))
            families.setdefault(alike, []).append(found)
    return families


def best_of(known, allowed):
    """Return the fastest of the candidates that are allowed; None where a table knows none."""
    seconds = {key: s for key, s in timed(known).items() if key in allowed} if known else {}
    return min(seconds, key=seconds.get) if seconds else None


def blocks(key):
    """Return how many images of a candidate are in blocks of channels."""
    _, layouts = key
    return sum(layout.startswith("nChw") for layout in layouts)


def choices(left_out, others):
    """Return what each way chooses for a problem, by its name."""
    seconds, sizes = timed(left_out), sizes_of(left_out.subject)
    near = sorted(others, key=lambda t: np.abs(sizes_of(t.subject) - sizes).sum())
    first = max(seconds, key=blocks)  # the first of those that are alike
    return {
        "the heuristic": first,
        "the nearest sizes": best_of(near[0], seconds) or first,
        "the model": best_of(predicted(left_out.subject, others), seconds) or first,
    }


def ratios(families):
    """Return for each way how many times as long as the best each of its choices takes."""
    found = {}
    for tables in families.values():
        for i, left_out in enumerate(tables):
            others = tables[:i] + tables[i + 1 :]
            if not others:
                continue
            seconds = timed(left_out)
            best = min(seconds.values())
            for way, key in choices(left_out, others).items():
                found.setdefault(way, []).append(seconds[key] / best)
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--size", type=int, default=64, help="pixels a side")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.batches, asked.size, asked.threads)
    found = ratios(measured(options.cache_folder(), asked.threads))
    print("| chosen by | problems | within 3 % of the best | times the best, mean | nine of ten |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for way, times in found.items():
        close, most = np.mean(np.array(times) <= 1 + CLOSE), np.quantile(times, 0.9)
        mean = np.exp(np.mean(np.log(times)))
        print(f"| {way} | {len(times)} | {close:.0%} | {mean:.2f} | {most:.1f} |")


if __name__ == "__main__":
    main()
