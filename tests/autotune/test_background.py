"""Work in another thread: its result, its errors, and its end with the program's."""

import os
import subprocess
import sys
import time

import pytest

from minigraph.autotune import background

# Begins to compile something that takes a minute, says so, and ends.
PROGRAM = """
import os, pathlib, sys, time
from minigraph.autotune import background
from minigraph.cache import temporary
from minigraph.devices.cpu import processes

root = pathlib.Path(sys.argv[1])

def compile():
    with temporary.folder(root, "minigraph-jit-") as folder:
        command = ["sh", "-c", "echo $$ > ../pid; mv ../pid ../ready; exec sleep 60"]
        processes.run({"unit": command}, folder, os.environ, 1, 60)

begun = background.begun(compile, "compiles")
while not (root / "ready").exists():
    assert not begun.done(), begun.exception()
    time.sleep(0.01)
print(time.monotonic())
"""


def test_a_result_and_an_error_are_the_callers():
    assert background.begun(lambda: "made", "makes").result(10) == "made"
    with pytest.raises(ZeroDivisionError):
        background.begun(lambda: 1 // 0, "divides").result(10)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="the system has no groups of processes")
def test_a_program_that_ends_waits_for_nothing_and_leaves_neither_a_compiler_nor_its_files(
    tmp_path,
):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=50
    )
    took = time.monotonic() - float(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert took < 30  # of the 60 that the compiler would take
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "ready").read_text()), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
