"""A worker as seen by who asks it: its process, its answers, and its last words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


class Failure(Exception):
    """A worker that cannot go on; the text is one line."""


class Worker:
    """A process that runs one side of one case; `first` is what its first call took, in seconds."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which ends it
        )
        try:
            self.first: float = self._answer()["first"]
        except BaseException:
            self.kill()
            raise

    def ask(self, what: str) -> dict[str, Any]:
        """Return the answer to a request; `worker` says which there are."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            print(what, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failure(self._last_words(self._process.wait()))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def _last_words(self, status: int) -> str:
        if status == -signal.SIGKILL:
            return "was killed, as a system does that runs out of memory"
        self._said.seek(0)
        words = self._said.read().split("\n")
        last = next((w.strip() for w in reversed(words) if w.strip()), "it said nothing")
        return f"ended with status {status}: {last[:200]}"

    def kill(self) -> None:
        """End the process, whatever it does; more than once does no harm."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the compilers that it started
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            assert pipe is not None
            with suppress(BrokenPipeError):  # nobody is left to read what was written
                pipe.close()
