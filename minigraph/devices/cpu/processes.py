"""Several programs at once, each with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path


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
    waiting, running = deque(commands), deque[_Process]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name = waiting.popleft()
                try:
                    running.append(_Process(name, commands[name], folder, variables, seconds))
                except OSError as error:
                    said[name] = str(error)
            if running:
                first = running[0]
                try:
                    said[first.name] = first.wait()
                except subprocess.TimeoutExpired:
                    said[first.name] = f"did not end within {seconds:g} seconds"
                    waiting.clear()
                first.end()
                running.popleft()
    finally:
        for process in running:
            process.end()
    return said


class _Process:
    """A running command, the leader of a group with all that it starts."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        seconds: float,
    ) -> None:
        self.name = name
        self.until = time.monotonic() + seconds
        # No pipe: one that is read later can fill up, and a grandchild can hold it open.
        self.log = folder / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> str:
        """Return what it said if it failed, else ""; TimeoutExpired at the end of its time."""
        status = self.process.wait(max(self.until - time.monotonic(), 0))
        if status == 0:
            return ""
        said = self.log.read_text(errors="replace").strip()
        return said or (f"killed by signal {-status}" if status < 0 else f"exit status {status}")

    def end(self) -> None:
        """Kill it, with what it started, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
