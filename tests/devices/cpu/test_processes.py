"""Commands that run at the same time: their output, failures and timeouts."""

import os
import subprocess
import time

import pytest

from minigraph.devices.cpu.compiler import run_commands


def test_commands_say_why_they_failed(tmp_path, nowhere):
    commands = {
        "good": ["sh", "-c", "echo fine"],
        "bad": ["sh", "-c", "echo one; echo two >&2; exit 1"],
        "silent": ["sh", "-c", "exit 3"],
        "killed": ["sh", "-c", "kill -9 $$"],
        "absent": [str(nowhere)],
        "loud": ["sh", "-c", "printf %0200000d 0; exit 1"],
    }
    messages = run_commands(commands, tmp_path, os.environ, 2, 60)
    assert messages["good"] == ""
    assert messages["bad"] == "one\ntwo"
    assert messages["silent"] == "exit status 3"
    assert messages["killed"] == "killed by signal 9"
    assert str(nowhere) in messages["absent"]
    assert len(messages["loud"]) == 200000


def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path):
    commands = {
        "hangs": ["sh", "-c", "sh -c 'sleep 30; touch late' & echo $$ > pid; wait"],
        "good": ["true"],
        "later": ["true"],
    }
    messages = run_commands(commands, tmp_path, os.environ, 2, 1)
    assert not (tmp_path / "late").exists()
    assert messages["hangs"] == "did not end within 1 seconds"
    assert messages["good"] == ""
    assert "not started" in messages["later"]
    group = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(3000):  # init has yet to bury the grandchild
            os.killpg(group, 0)
            time.sleep(0.01)


def test_an_interrupt_kills_running_processes(tmp_path, monkeypatch):
    pids = [tmp_path / "one", tmp_path / "two"]

    wait = subprocess.Popen.wait

    def interrupted(process, seconds=None):
        if seconds is None:  # of a process that is killed
            return wait(process)
        while not all(path.exists() and path.read_text() for path in pids):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    commands = {path.name: ["sh", "-c", f"echo $$ > {path}; exec sleep 60"] for path in pids}
    with pytest.raises(KeyboardInterrupt):
        run_commands(commands, tmp_path, os.environ, 2, 60)
    for path in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
