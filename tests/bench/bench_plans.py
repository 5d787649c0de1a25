"""Plans of benchmarks, made as the command line makes them, and workers that are scripted."""

import json
import sys
from dataclasses import replace

from minigraph import cli
from minigraph.bench import command
from minigraph.bench.results import CaseResult, Results, SideResult


def planned(*arguments):
    asked = cli._parser().parse_args(["bench", "--device", "cpu", *arguments])
    return command.plan_of(asked)


SCRIPT = """
import json, os, sys
def say(what):
    print(json.dumps(what), flush=True)
say({"first": 0.5})
times = iter(json.loads(sys.argv[1]))
for line in sys.stdin:
    if line == "summary\\n":
        say({"peak": 1 << 30, "p99": None, "roofline": None})
        continue
    answer = json.loads(sys.argv[2]) if line == "outputs\\n" else next(times, 0.25)
    if answer == "exit":
        sys.exit("no more of it")
    elif answer == "kill":
        os.kill(os.getpid(), 9)
    elif answer == "noise":
        print("Warning: [[[", flush=True)
    elif answer == "error":
        say({"error": "MemoryError: too much"})
    else:
        say({"outputs" if line == "outputs\\n" else "step": answer})
"""


def scripted(*times, outputs=()):
    """The command of a worker that says it took these times, then a quarter of a second."""
    return [sys.executable, "-S", "-c", SCRIPT, json.dumps(times), json.dumps(outputs)]


def on_cuda():
    """A plan for a GPU, which the machine may lack."""
    return replace(planned(), device="cuda", precision="bfloat16")


def results(images=8, **cases):
    """Results of cases with these titles' samples by side."""
    made = Results.begin({"threads": 2})
    for title, samples in cases.items():
        sides = {name: SideResult(seconds) for name, seconds in samples.items()}
        made.cases[title] = CaseResult(f"{title}, batch 8", images, sides)
    return made
