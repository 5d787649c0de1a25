"""Plans of benchmarks, made as the command line makes them, and workers that are scripted."""

import json
import sys
from dataclasses import replace

from minigraph import cli
from minigraph.bench import command


def planned(*arguments):
    return command.planned(cli._parser().parse_args(["bench", *arguments]))


SCRIPT = """
import json, os, sys
def say(what):
    print(json.dumps(what), flush=True)
say({"first": 0.5})
times = iter(json.loads(sys.argv[1]))
for line in sys.stdin:
    if line in ("details\\n", "scores\\n"):
        say({"peak": 1 << 30, "scores": json.loads(sys.argv[2])})
        continue
    took = json.loads(sys.argv[2]) if line == "losses\\n" else next(times, 0.25)
    if took == "exit":
        sys.exit("no more of it")
    elif took == "kill":
        os.kill(os.getpid(), 9)
    elif took == "noise":
        print("Warning: [[[", flush=True)
    elif took == "error":
        say({"error": "MemoryError: too much"})
    else:
        say({"losses" if line == "losses\\n" else "step": took})
"""


def scripted(*times, losses=()):
    """The command of a worker that says it took these times, then a quarter of a second."""
    return [sys.executable, "-S", "-c", SCRIPT, json.dumps(times), json.dumps(losses)]


def silent(what, left):
    """Show no progress."""


def on_cuda():
    """A plan for a GPU, made where there may be none."""
    return replace(planned("--device", "cpu"), device="cuda", precision="bfloat16")
