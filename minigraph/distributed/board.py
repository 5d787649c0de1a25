"""A board for each process, which the others can read: what it waits for, or that it has ended."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from minigraph.platform import forks

ENDED = "has ended"
BUSY = "is in no collective: it computes, is stopped or hangs"
LONGEST = 240  # bytes of a text
PAUSE = 0.001  # seconds between two looks for an answer
SHOWN = 9  # ranks of a group in a message


class Board:
    """A window of MPI in which each process of a communicator has a text.

    A text can be read while its process is in a call of MPI, and on the same machine always.  Any
    thread may read or write.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._lock = forks.lock()
        self._comm = comm.Dup()
        self._window = mpi.Win.Allocate(LONGEST, 1, comm=comm)
        self._text = np.frombuffer(self._window.tomemory(), np.uint8)
        self._questions: dict[int, tuple[Any, Any]] = {}  # requests, and what they fill
        self.write("")
        self._window.Lock_all()

    def write(self, text: str) -> None:
        """Show a text to the other processes; "" where this one waits for nothing."""
        data = text.encode()[:LONGEST]
        with self._lock:
            self._text[: len(data)] = np.frombuffer(data, np.uint8)
            self._text[len(data) :] = 0

    def read(self, patience: float) -> dict[int, str]:
        """Return the texts of the other processes that answer within so many seconds, by rank."""
        texts: dict[int, str] = {}
        end = time.monotonic() + patience
        with self._lock:
            for rank in set(range(self._comm.size)) - {self._comm.rank} - self._questions.keys():
                answer = np.empty(LONGEST, np.uint8)
                self._questions[rank] = self._window.Rget(answer, rank), answer
            while self._questions:
                for rank, (request, answer) in list(self._questions.items()):
                    if request.Test():
                        texts[rank] = answer.tobytes().rstrip(b"\0").decode(errors="replace")
                        del self._questions[rank]
                if time.monotonic() >= end:
                    break
                time.sleep(PAUSE)
        return texts

    def leave(self) -> None:
        """Show that this process ends, and wait until all do so."""
        self.write(ENDED)
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(PAUSE)
        self._window.Unlock_all()
        self._window.Free()


def described(size: int, texts: dict[int, str]) -> str:
    """Return what the processes do, those that do the same together."""
    groups: dict[str, list[int]] = {}
    for rank in range(size):
        groups.setdefault(texts.get(rank) or BUSY, []).append(rank)
    return "; ".join(f"{_processes(ranks)} {doing}" for doing, ranks in groups.items())


def _processes(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    rest = len(ranks) - SHOWN
    more = f" and {rest} more" if rest > 0 else ""
    return f"each of processes {', '.join(map(str, ranks[:SHOWN]))}{more}"
