"""Attack minigraph for a given time, and report what broke.

    python tools/attack.py --minutes 60                 # every part, from a seed that it prints
    python tools/attack.py --minutes 60 --seed 7 races  # one part, from this seed
    python tools/attack.py --seed 1234 --only races     # one attempt, as a failure names it

Each part is an attack of `tools/attacks`, which is tried with one seed after the other.  The parts
share the time evenly, in turns.  Attempts run in separate processes, so that one that crashes or
hangs does not end the others.  At the end a table shows the counts, `--json FILE` writes them, and
the exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

ROOT = Path(__file__).parent.parent
FOLDERS = ("", "tests", "tools", "examples/training")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]

from attacks.table import ATTACKS  # noqa: E402

from minigraph.cache.machine import processor  # noqa: E402
from minigraph.platform.regular_file import write_text  # noqa: E402

TURN = 60.0  # seconds that a part runs before the next one
LINES = 8  # number of the last lines to show of a failed attempt


# ---------------------------------------------------------------- in the process of an attempt


def attempt(name: str, seeds: range, until: float) -> None:
    """Try an attack with one seed after the other; print each begin and end as a line of JSON."""
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # other output must not mix with the lines of JSON
    for seed in seeds:
        print(json.dumps({"seed": seed}), file=reports)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            counts, error = {}, ""
            try:
                counts = ATTACKS[name].attack(seed, Path(folder))
            except Exception:
                error = traceback.format_exc()
        print(json.dumps({"done": seed, "counts": counts, "error": error}), file=reports)
        if time.time() >= until:
            return


# ---------------------------------------------------------------- the parts


class Part:
    """The results of one attack.

    seed      the next seed to try
    attempts  the number that ended, passed or failed
    failures  the seeds that failed, each with the reason
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.attack = ATTACKS[name]
        self.attempts = 0
        self.seconds = 0.0
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[int, str]] = []

    def run(self, seconds: float, folder: Path, last: int | None = None) -> None:
        """Make attempts for some seconds, at least one, and none beyond the seed `last`."""
        begin = time.monotonic()
        until = time.time() + seconds
        while True:
            self._process(until, folder, last)
            if time.time() >= until or (last is not None and self.seed > last):
                break
        self.seconds += time.monotonic() - begin

    def _process(self, until: float, folder: Path, last: int | None) -> None:
        """Make attempts in one process, until it ends or must be killed."""
        log = folder / "log"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        end = self.seed + 1_000_000 if last is None else last + 1
        command = [sys.executable, __file__, "--attempt", self.name, str(self.seed), str(end)]
        environment = {
            **os.environ,
            # For processes that attempts start, too.
            "PYTHONPATH": os.pathsep.join(sys.path[: len(FOLDERS)]),
            **self.attack.environment(),
            "MINIGRAPH_CACHE_DIR": str(folder / "cache"),
            "TMPDIR": str(temporary),
        }
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*command, str(until)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,  # `select` does not see lines in a buffer
                start_new_session=True,
            )
        running, reason = None, ""
        assert process.stdout is not None
        with process, DefaultSelector() as selector:
            selector.register(process.stdout, EVENT_READ)
            try:
                while True:
                    if not selector.select(self.attack.seconds):
                        reason = f"it did not end within {self.attack.seconds} seconds"
                        break
                    line = process.stdout.readline()
                    if not line:
                        break
                    report = json.loads(line)
                    if "seed" in report:
                        running = report["seed"]
                        continue
                    running = None
                    self._ended(report["done"], report["counts"], report["error"])
            finally:
                if process.poll() is None:
                    if reason or sys.exc_info()[0]:
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        status = process.returncode
        if running is None and status and not reason:  # before the first attempt, or between two
            running = self.seed
        if running is not None:
            printed = log.read_text(errors="replace").splitlines()
            reason = reason or f"the process ended with status {status}"
            self._ended(running, {}, "\n".join([*printed, reason]))
        shutil.rmtree(temporary, ignore_errors=True)

    def _ended(self, seed: int, counts: dict[str, int], error: str) -> None:
        self.seed = seed + 1
        self.attempts += 1
        self.counts.update(counts)
        if error:
            self.failures.append((seed, error))
            lines = "\n".join(f"    {line}" for line in error.splitlines()[-LINES:])
            print(f"FAILED: python tools/attack.py --seed {seed} --only {self.name}\n{lines}")
            sys.stdout.flush()

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        failed = f"{len(self.failures)} failed" if self.failures else "none failed"
        return f"{self.name:13} {self.attempts:6,} attempts, {failed}: {counts}"


def commit() -> str:
    """Return the commit that is checked out, with a + if files differ from it."""
    process = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout.strip() or "unknown"


def report(parts: list[Part], seed: int, minutes: float) -> dict[str, object]:
    """Return the results of the parts, in the form that `docs/tables.py` reads."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "machine": f"{processor()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "seed": seed,
        "minutes": round(minutes, 1),
        "parts": {
            part.name: {
                "attempts": part.attempts,
                "counts": dict(part.counts),
                "failures": dict(part.failures),
            }
            for part in parts
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(ATTACKS)}")
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="in all, but at least one attempt of each part (default: 60)",
    )
    parser.add_argument("--seed", type=int, help="the first seed (default: a random one)")
    parser.add_argument("--only", choices=ATTACKS, help="make the one attempt of --seed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to FILE")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(ATTACKS))
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; the parts are {', '.join(ATTACKS)}")
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    names = [options.only] if options.only else options.parts or [*ATTACKS]
    parts = [Part(name, seed) for name in names]
    print(f"seed {seed}, commit {commit()}, {processor()}, {os.cpu_count()} CPUs", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="minigraph-long-", ignore_cleanup_errors=True) as path:
        folder = Path(path)
        if options.only:
            parts[0].run(0, folder, last=seed)
        else:
            share = options.minutes * 60 / len(parts)
            while waiting := [p for p in parts if p.seconds < share or not p.attempts]:
                for part in waiting:
                    part.run(min(share - part.seconds, TURN), folder)
                    print(part, flush=True)
                    if options.json:  # a run that is interrupted leaves its counts, too
                        minutes = (time.monotonic() - begin) / 60
                        write_text(options.json, json.dumps(report(parts, seed, minutes), indent=1))
    minutes = (time.monotonic() - begin) / 60
    print(f"\nin {minutes:.1f} minutes from seed {seed}:\n", *parts, sep="\n")
    return 1 if any(part.failures for part in parts) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attempt"]:
        name, first, end, until = sys.argv[2:]
        attempt(name, range(int(first), int(end)), float(until))
    else:
        sys.exit(main())
