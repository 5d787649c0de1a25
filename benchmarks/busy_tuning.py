"""Print how good choices are that are measured while other programs compute, by statistic.

    python benchmarks/busy_tuning.py [NETWORK ...] [--quick] [--problems 10] [--busy 0 1 2]

The candidates of some convolutions and products of a network's training step are timed in turn,
beside so many programs that run through memory.  A choice, in one layout or of all, is made as the
tuner makes it: by the least time that passed, or by other statistics, also of the time that the
busiest thread of a run computed.  A longer measurement beside no other program judges: the mean is
the geometric one of the time of what is chosen over that of the best.
"""

import argparse
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from unittest import mock

import numpy as np
from msgspec import structs

import minigraph as mg
from minigraph.autotune.data import Data
from minigraph.autotune.policy import Policy, choose
from minigraph.autotune.session import Session
from minigraph.autotune.trial import Trial
from minigraph.bench.cases import case
from minigraph.bench.ours import LIBRARY, training

BUSY = "import numpy as np\nx = np.ones(1 << 22, np.float32)\nwhile True: x *= 1.0000001"
ROUNDS, TRUTH = 5, 15
LARGE = 2e7  # operations: only such problems are worth it
WAYS = ("passed, median", "passed, least", "computed, median", "computed, least")


def problems(network, quick, most):
    """Return problems of a training step, evenly chosen among those that are large."""
    found = []
    subject = case(network, quick=quick)
    cg = mg.comp_graph(options={"graph_opt_level": 3, "autotune": "tune"})
    with mock.patch.object(Session, "_measure", lambda self, asked: found.extend(asked)):
        training(cg, subject, subject.network(LIBRARY))
    large = [p for p in found if p.work > LARGE and not p.subject.startswith("reorder")]
    return large[:: max(len(large) // most, 1)][:most]


def trials(problem):
    """Return the candidates of a problem that are right and not hopelessly slow."""
    data, found = Data(problem), []
    for candidate in problem.candidates(None):
        trial = Trial(candidate, problem.workbench)
        trial.made()
        trial.check(data, time.perf_counter)
        found.append(trial)
    best = min(trial.first for trial in found if not trial.error)
    for trial in found:
        trial.plan(best)
    return [trial for trial in found if trial.turns]


def computed():
    """Return the seconds that each thread of this process has computed so far."""
    threads = map(int, os.listdir("/proc/self/task"))
    # As pthread_getcpuclockid has it: the scheduler's clock (2) of one thread (4).
    return {thread: time.clock_gettime(~thread << 3 | 4 | 2) for thread in threads}


def sample(trial):
    """Run a candidate once, or a group of times; return for how long, and what that computed."""
    before = computed()
    trial.time(time.perf_counter)
    longest = max(seconds - before.get(thread, 0.0) for thread, seconds in computed().items())
    return trial.samples[-1], longest / trial.calls


def measured(tried, rounds):
    """Return what passed while candidates, which took turns, ran, and what that computed."""
    samples = [[sample(trial) for trial in tried] for _ in range(rounds)]
    return np.moveaxis(samples, 2, 0)


@contextmanager
def beside(programs):
    """Let so many other programs compute inside."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(programs)]
    try:
        time.sleep(0.5 * bool(programs))
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def known(tried, samples, way):
    """Return what is known of candidates by a way to see samples: passed and computed."""
    own = samples[int(way.startswith("computed"))]
    low, median, high = np.quantile(own, [0.25, 0.5, 0.75], axis=0)
    seconds, spread = median, (high - low) / median
    if way.endswith("least"):
        seconds = np.min(own, axis=0)
        spread = (low - seconds) / seconds
    return [
        structs.replace(trial.candidate.measurement(0), seconds=float(s), spread=float(apart))
        for trial, s, apart in zip(tried, seconds, spread, strict=True)
    ]


def losses(measurements, truth):
    """Yield the times of what is chosen over that of the best: in each layout, and of all."""
    seconds = {m.key: s for m, s in zip(measurements, truth, strict=True)}
    for layouts in (*dict.fromkeys(m.layouts for m in measurements), None):
        rivals = [m for m in measurements if layouts in (None, m.layouts)]
        if len(rivals) > 1:
            best = min(seconds[m.key] for m in rivals)
            yield seconds[choose(rivals, Policy()).key] / best


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=["resnet18"], metavar="NETWORK")
    parser.add_argument("--quick", action="store_true", help="smaller images and batches")
    parser.add_argument("--problems", type=int, default=10)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    wanted = [p for name in asked.networks for p in problems(name, asked.quick, asked.problems)]
    tried = [trials(problem) for problem in wanted]
    truths = [np.median(measured(each, TRUTH)[0], axis=0) for each in tried]
    print("| other programs | by | choices | within 3 % of the best | mean | worst |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for busy in asked.busy:
        with beside(busy):
            samples = [measured(each, ROUNDS) for each in tried]
        for way in WAYS:
            found = [
                loss
                for each, truth, own in zip(tried, truths, samples, strict=True)
                for loss in losses(known(each, own, way), truth)
            ]
            close, mean = np.mean(np.array(found) <= 1.03), np.exp(np.mean(np.log(found)))
            row = f"{len(found)} | {close:.0%} | {mean:.3f} | {max(found):.2f}"
            print(f"| {busy} | {way} | {row} |", flush=True)


if __name__ == "__main__":
    main()
