"""Mutation testing: change one place of the package at a time, and list what no test notices.

    python tools/mutation.py minigraph/passes minigraph/jit          # one mutant for 16 lines
    python tools/mutation.py --lines 1 minigraph/autotune/tuner.py    # all mutants of a file
    python tools/mutation.py --list minigraph/cache                   # show them, run nothing
    python tools/mutation.py --again minigraph/passes minigraph/jit   # survivors, with new tests

The mutants depend on the sources and the seed alone.  Each is applied to a copy of the repository,
where the tests of the changed file (`TESTS`) run until one fails.  Outputs of compilers are cached,
so most mutants take some seconds.  Each mutant is one line of JSON in the file of `--results`; a
second run continues where the first one ended.  First the tests run without a mutant.

A mutant that survives is equivalent or harmless, or shows that a test is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mutants import ROOT, File, Mutant, is_pass

TEMPORARY = Path(tempfile.gettempdir())
SECONDS = 120.0  # that the tests of one mutant may take

# The tests of a file or a folder, the quickest first; the longest prefix of its path decides.
TESTS = {
    "passes": "cases golden fusion library_fusion layout",
    "passes/kernels": "cases fusion golden batch_norm_fusion",
    "passes/kernels/fma": "cases fma",
    "passes/kernels/narrow_storage": "narrow_storage",
    "passes/layout": "pbqp layout",
    "passes/levels": "golden levels",
    "compiler": "pipeline compile function arguments_of_calls any_size steps fingerprint",
    "passes/library": "cases golden library_fusion library_kernels batch_norm_fusion",
    "passes/library/mixed_precision": "cases mixed_precision",
    "passes/notes": "golden fusion function",
    "passes/rewrite": "cases rule simplify",
    "passes/rewrite/loops": "loops scan",
    "jit": "golden domain fusion jit jit_numbers jit_networks generated lanes",
    "jit/c": "golden jit jit_numbers jit_networks generated lanes",
    "jit/cuda": "cuda_backend cuda_text",
    "jit/fused": "golden fusion library_fusion",
    "jit/small_float": "sixteen_bit sixteen_bit_fused lanes",
    "platform/records": "records cache_file store odd_measurements",
    "autotune": "trial session choices odd_measurements cuda_workbench tuned",
    "devices/problem": "problem reference",
    "cache": "store damaged_store cache_file cache_api cache_dir session",
    "platform/trust": "trust store cache_file jit_disk",
    "program": "program memory_plan program_steps cuda_program function tuned",
    "graph": "graph state wrong_calls function ops",
    "onnx": "onnx_suite onnx_models",
    "data": "any_data iterables transforms loader",
    "training/evaluation": "evaluation",
    "graph_file": "graph_files wrong_calls damage",
    "onnx/exports": "onnx_saving",
    "onnx/save": "onnx_saving",
    "onnx/writer": "onnx_saving",
    "serialization/tensor_file": "loading serialization shards damage",
    "serialization/torch_file": "torch_files damage",
}
# Slow tests that find little: other processes, many random graphs, whole networks.
SKIPPED = (
    "writer_that_is_killed or processes_that_write or no_mutation_of_a_file or ctrl_c or "
    "ten_thousand or linear or thousands or every_process or keeps_the_meaning or "
    "the_meaning_on_the_cpu or many_stages or long_chain or networks_train"
)


def sample(paths: list[str], lines: int, seed: int) -> list[Mutant]:
    """Return one mutant for each `lines` lines of each file, in an order that mixes the files."""
    selected: list[Mutant] = []
    for folder in paths:
        files = sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]
        for file in files:
            path = str(file.relative_to(ROOT))
            mutants = list(dict.fromkeys(File(path).mutants()))
            random.Random(f"{seed} {path}").shuffle(mutants)
            mutants.sort(key=is_pass, reverse=True)
            count = max(len(file.read_text().splitlines()) // lines, sum(map(is_pass, mutants)))
            selected += mutants[:count]
    random.Random(seed).shuffle(selected)
    return selected


COMPILER = """#!/bin/sh
# Run {compiler}, or copy its output of an earlier run on the same text.
key=$({{
  echo "{compiler} $*"
  for a in "$@"; do case "$a" in *.c|*.cpp) cat "$a";; esac; done
}} | sha1sum)
cached={folder}/${{key%% *}}
out=""
for a in "$@"; do [ "$out" = next ] && out="$a"; [ "$a" = -o ] && out=next; done
[ -n "$out" ] && [ -f "$cached" ] && exec cp "$cached" "$out"
{compiler} "$@" || exit
[ -n "$out" ] && cp "$out" "$cached.$$" && mv "$cached.$$" "$cached"
exit 0
"""


class Workshop:
    """A copy of the repository in which mutants are tested."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "copy", folder / "bin"
        shutil.rmtree(self.folder, ignore_errors=True)
        hidden = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(ROOT, self.folder, ignore=hidden)
        (folder / "made").mkdir(parents=True, exist_ok=True)
        self.bin.mkdir(exist_ok=True)
        for name in ("cc", "gcc", "g++"):
            if compiler := shutil.which(name):
                script = COMPILER.format(compiler=compiler, folder=folder / "made")
                (self.bin / name).write_text(script)
                (self.bin / name).chmod(0o755)
        self.tests = {file.stem: file for file in (self.folder / "tests").rglob("test_*.py")}

    def files(self, path: str) -> list[str]:
        """Return the tests of a file of the package."""
        prefix = Path(path).relative_to("minigraph").with_suffix("")
        while str(prefix) not in TESTS:
            prefix = prefix.parent
        return [str(self.tests[f"test_{name}"]) for name in TESTS[str(prefix)].split()]

    def test(self, mutant: Mutant, seconds: float) -> tuple[str, str]:
        """Return "killed", "survived" or "timeout", and the first test that failed."""
        file = self.folder / mutant.path
        file.write_text(mutant.applied())
        try:
            return self.run(self.files(mutant.path), seconds)
        finally:
            shutil.copyfile(ROOT / mutant.path, file)

    def run(self, files: Sequence[str], seconds: float) -> tuple[str, str]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["--tb=no", "-k", f"not ({SKIPPED})", *files]
        environment = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                return "timeout", ""
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        if status == 0:
            return "survived", ""
        failed = re.search(r"^(?:FAILED|ERROR) (.*)", text, re.M)
        return "killed", failed[1] if failed else f"exit status {status}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", help="files or folders of the package")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--lines", type=int, default=16, help="of source for one mutant")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the tests of a mutant")
    parser.add_argument("--again", action="store_true", help="test mutants again that survived")
    parser.add_argument("--list", action="store_true", help="show the mutants, test none")
    parser.add_argument("--results", type=Path, default=TEMPORARY / "mutation.jsonl")
    parser.add_argument("--folder", type=Path, default=TEMPORARY / "mutation")
    options = parser.parse_args()
    mutants = sample(options.paths, options.lines, options.seed)
    if options.list:
        print("\n\n".join(mutant.diff() for mutant in mutants))
        print(f"\n{len(mutants)} mutants")
        return
    finished = {
        diff
        for diff, outcome in outcomes(options.results).items()
        if not (options.again and outcome != "killed")
    }
    workshop = Workshop(options.folder)
    mutants = [mutant for mutant in mutants if mutant.diff() not in finished]
    for files in sorted({tuple(workshop.files(mutant.path)) for mutant in mutants}):
        outcome, test = workshop.run(files, 10 * options.seconds)
        if outcome != "survived":
            sys.exit(f"the tests must pass without a mutant: {outcome} {test}")
    for mutant in mutants:
        start = time.monotonic()
        outcome, test = workshop.test(mutant, options.seconds)
        seconds = round(time.monotonic() - start, 1)
        record = {"outcome": outcome, "test": test, "seconds": seconds, "diff": mutant.diff()}
        with options.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if outcome != "killed":
            print(f"{outcome} ({seconds} s): {mutant.diff()}\n", flush=True)
    report(options.results)


def outcomes(results: Path) -> dict[str, str]:
    """Return the outcome of the last test of each mutant, by its diff."""
    lines = results.read_text().splitlines() if results.exists() else ()
    return {record["diff"]: record["outcome"] for record in map(json.loads, lines)}


def report(results: Path) -> None:
    """Print how many mutants of each folder were killed."""
    folders: dict[str, Counter[str]] = {}
    for diff, outcome in outcomes(results).items():
        folder = str(Path(diff.split(" ")[0]).parent)
        folders.setdefault(folder, Counter())[outcome] += 1
    for folder, counts in sorted(folders.items()):
        summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{folder}: {counts.total()} mutants: {summary}")


if __name__ == "__main__":
    main()
