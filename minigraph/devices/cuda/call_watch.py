"""A watch over calls whose collectives wait for other processes on the device.

Such a wait takes place in kernels, and the host learns of it only where it waits for a result,
which may be in code of the user.  So a thread polls whether the oldest call has ended.  A call
that takes too long, or needs a process that has ended, cannot be cancelled: the device goes on
waiting.  The thread then ends all processes, with a line that says what each waits for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from minigraph.devices.cuda.driver import Driver
from minigraph.distributed import World
from minigraph.distributed.ending import end_all
from minigraph.errors import GraphError

POLL = 1.0  # seconds between two polls of the oldest call


class WatchedCall:
    """A call with collectives.

    what     it waits for on the device, in words
    timeout  seconds after which that is an error
    end      the event of its end, once all of it is enqueued
    """

    def __init__(self, what: str, timeout: float) -> None:
        self.what = what
        self.timeout = timeout
        self.end: int | None = None


class CallWatch:
    """The calls of this process that have collectives, in order.

    check  raises GraphError if an exchange has failed
    """

    def __init__(self, world: World, driver: Driver, check: Callable[[], None]) -> None:
        self._world = world
        self._driver = driver
        self._check = check
        self._calls: deque[WatchedCall] = deque()
        self._free: list[int] = []  # events
        self._process = os.getpid()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def during(self, what: str, timeout: float) -> Iterator[None]:
        """Watch what is enqueued in the block, on the stream `compute`, until it has ended."""
        self._forget_ended()
        call = WatchedCall(what, timeout)
        self._calls.append(call)
        if self._thread is None and self._world.size > 1:
            self._thread = threading.Thread(target=self._poll, daemon=True)
            self._thread.start()
            atexit.register(self._finish)  # before all processes end together
        try:
            yield
        finally:
            end = self._free.pop() if self._free else self._driver.event()
            self._driver.record(end, self._driver.compute)
            call.end = end

    def _forget_ended(self) -> None:
        while self._calls and self._ended(self._calls[0]):
            end = self._calls.popleft().end
            assert end is not None
            self._free.append(end)

    def _ended(self, call: WatchedCall) -> bool:
        return call.end is not None and self._driver.happened(call.end)

    def _poll(self) -> None:
        """Poll the oldest call for ever, and wait for one that was the oldest at two polls."""
        last: list[WatchedCall] = []
        with self._driver.current():
            while True:
                time.sleep(POLL)
                oldest = [*self._calls][:1]
                if oldest == last:
                    for call in oldest:
                        self._wait(call)
                last = oldest

    def _wait(self, call: WatchedCall) -> None:
        def ended() -> bool:
            if self._ended(call) or call not in self._calls:
                return True
            self._check()
            return False

        try:
            self._world.wait(ended, call.what, call.timeout)
        except GraphError as error:
            end_all(1, str(error))

    def _finish(self) -> None:
        """Wait for all calls: the other processes need what this one's device still has to do."""
        if os.getpid() == self._process:
            with self._driver.current():
                for call in [*self._calls]:
                    self._wait(call)
