"""The log and progress bars, and the processes that show them."""

import logging
import os
import pty
import runpy
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from new_process import python

import minigraph as mg
from minigraph import errors
from minigraph.autotune import session
from minigraph.platform import messages
from minigraph.platform.messages import progress, status_line

SLOW = """
import time
from minigraph.platform import messages
from minigraph.platform.messages import progress, status_line
messages.DELAY = 60.0  # which nothing takes, however busy the machine is
with status_line("never, for it is quick"):
    pass
messages.DELAY = 0.05
with status_line("compiling: optimize"):
    time.sleep(0.5)
with progress(total=2, desc="autotune") as bar, status_line("never"):
    for _ in range(2):
        time.sleep(0.1)
        bar.update(1)
"""


def on_a_terminal(program, **variables):
    """Return a program's output to a terminal that is its standard error."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 80))
    subprocess.run(
        [sys.executable, "-c", program], stderr=its, env={**os.environ, **variables}, check=True
    )
    os.close(its)
    written = b""
    try:
        while part := os.read(ours, 4096):
            written += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return written.decode()


def test_a_terminal_shows_what_takes_long_and_one_thing_at_a_time():
    text = on_a_terminal(SLOW)
    assert "compiling: optimize, " in text and "autotune" in text
    assert "never" not in text


def test_nothing_is_shown_where_only_errors_are_wanted_or_nobody_looks():
    assert on_a_terminal(SLOW, MINIGRAPH_LOG="error") == ""
    unused = 'import sys\nassert "tqdm" not in sys.modules'  # which takes 50 ms to import
    assert python("-c", f"{SLOW}\n{unused}") == ("", "")


def test_what_installs_an_extra_works_in_a_clone_and_elsewhere(tmp_path):
    clone = Path(errors.__file__).parents[1]
    assert errors.install_command("onnx") == f"pip install -e '{clone}[onnx]'"
    (tmp_path / "minigraph").mkdir()
    copied = shutil.copy(errors.__file__, tmp_path / "minigraph" / "errors.py")
    command = runpy.run_path(copied)["install_command"]("onnx")
    assert command == "pip install 'minigraph[onnx]'"


def test_an_error_ends_the_status_line_and_the_progress_bar(monkeypatch):
    monkeypatch.setattr(messages, "_is_interactive", lambda: True)
    with pytest.raises(KeyError), status_line("x"):
        raise KeyError
    with pytest.raises(KeyError), progress(total=1):
        raise KeyError
    assert messages._bars == 0


COMPILE = """
import minigraph as mg
x = mg.input("x", (4, 8))
mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "tune"}).compile([x], (x @ x.T).exp() * 3)
"""


def test_the_environment_shows_the_log():
    _, info = python("-c", COMPILE, MINIGRAPH_LOG="info")
    assert "minigraph.compiler.pipeline: a function of" in info
    assert "minigraph.autotune.session: 1 problems: " in info and "fuse_kernels" not in info
    _, debug = python("-c", COMPILE, MINIGRAPH_LOG="DEBUG")
    assert "fuse_kernels: " in debug


def test_programs_take_the_log_by_the_names_of_modules(caplog):
    assert session.log.name == "minigraph.autotune.session"
    x = mg.input("x", (3,))
    with caplog.at_level(logging.INFO, "minigraph.compiler"):
        mg.comp_graph("reference").compile([x], x * 2)
    assert "a function of 1 steps on reference: build" in caplog.text
