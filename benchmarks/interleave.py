"""Timing several programs in turn, each in a process of its own.

The machine's speed drifts, so figures are compared within one run only: every round runs each
program once, and what counts is the median over rounds.  A process of its own keeps one program's
threads, allocator and libraries from the other's.
"""

import datetime
import importlib.metadata
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from minigraph.fingerprint import processor


@dataclass
class Samples:
    """Seconds of each round."""

    seconds: list

    @property
    def median(self):
        return statistics.median(self.seconds)

    @property
    def spread(self):
        """The distance between the quartiles over the median."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / self.median
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / self.median


class Worker:
    """A process that runs one case: it prints what setting up gave, then the time of each round."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.setup = json.loads(self._line())

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args)} ended with {self.process.wait()}")
        return line

    def run(self):
        """Run one round and return its seconds."""
        print("run", file=self.process.stdin, flush=True)
        return json.loads(self._line())

    def close(self):
        """Let the process end and return what it says last."""
        print("end", file=self.process.stdin, flush=True)
        last = json.loads(self._line())
        self.process.wait()
        return last


PAUSE, LONG = 0.02, 0.1


def steady(step):
    """Return the seconds of a step: of one, or the median of several if one is short.

    OpenMP's threads go on spinning for a few milliseconds after their work.  So a turn begins with
    a pause in which the other sides' fall asleep, and a short step is run once before it counts.
    """
    time.sleep(PAUSE)
    seconds = []
    while sum(seconds) < LONG:
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:] or seconds)


def serve(setup, step, end):
    """Be a worker: say `setup`, time the step at each request, say `end()` last."""
    out = sys.stdout
    print(json.dumps(setup), file=out, flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            print(json.dumps(end()), file=out, flush=True)
            return
        print(json.dumps(steady(step)), file=out, flush=True)


def interleave(workers, rounds, warmup=2):
    """Return the samples of each worker, by name."""
    seconds = {name: [] for name in workers}
    for i in range(warmup + rounds):
        for name, worker in workers.items():
            took = worker.run()
            if i >= warmup:
                seconds[name].append(took)
    return {name: Samples(values) for name, values in seconds.items()}


def compare(workers, rounds):
    """Run workers in turn, end them, and return samples and setup of each, by name."""
    samples = interleave(workers, rounds)
    for worker in workers.values():
        worker.close()
    return {
        name: {
            "seconds": samples[name].seconds,
            "median": samples[name].median,
            "spread": samples[name].spread,
            **worker.setup,
        }
        for name, worker in workers.items()
    }


def save(path, found, threads, libraries=(), **more):
    """Write what was found as JSON, with the machine and the versions it was found on."""
    about = {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "python": sys.version.split()[0],
        **{name: importlib.metadata.version(name) for name in libraries},
        "threads": threads,
        **more,
    }
    path.write_text(json.dumps({"about": about, "cases": found}, indent=1))
