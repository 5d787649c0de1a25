"""Several programs at once, each with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

Process = subprocess.Popen[bytes]  # the leader of a group with all that it starts


def run(
    commands: Mapping[str, Sequence[str]],
    folder: Path,
    variables: Mapping[str, str],
    at_once: int,
    seconds: float,
) -> dict[str, str]:
    """Run commands in a folder; return what each said if it failed, "" if it succeeded.

    commands   by name; what each says is written to the file `name`.log
    variables  their environment
    at_once    how many may run at the same time
    seconds    that each may take; after one that took longer no further command is started
    """
    said = dict.fromkeys(commands, "not started: an earlier one did not end")
    waiting, running = deque(commands), deque[tuple[str, Process, float]]()
    try:
        while waiting or running:
            if waiting and len(running) < at_once:
                name, until = waiting.popleft(), time.monotonic() + seconds
                # No pipe: one that is read later can fill up, and a grandchild can hold it open.
                with open(folder / f"{name}.log", "wb") as log:
                    try:
                        process = subprocess.Popen(
                            commands[name],
                            cwd=folder,
                            env=variables,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                        running.append((name, process, until))
                    except OSError as error:
                        said[name] = str(error)
                continue
            name, process, until = running[0]
            try:
                status = process.wait(max(until - time.monotonic(), 0))
                said[name] = _failure(status, folder / f"{name}.log") if status else ""
            except subprocess.TimeoutExpired:
                said[name] = f"did not end within {seconds:g} seconds"
                waiting.clear()
            _end(process)
            running.popleft()
    finally:
        for _, process, _ in running:
            _end(process)
    return said


def _failure(status: int, log: Path) -> str:
    said = log.read_text(errors="replace").strip()
    return said or (f"killed by signal {-status}" if status < 0 else f"exit status {status}")


def _end(process: Process) -> None:
    """Kill a process, with what it started, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
