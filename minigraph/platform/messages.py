"""Messages to the user during long work: the log, if enabled, and progress.

Each module has a logger with its name, below "minigraph".  If the logger "minigraph" passes only
errors, no progress is shown either.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

log = logging.getLogger("minigraph")
DELAY = 1.0  # seconds after which something is shown
_bars = 0  # open progress bars; a status line is shown only without one


def start_log(level: str) -> None:
    """Write log messages of at least this level to the standard error; "" writes none."""
    if level:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(level.upper())


@contextlib.contextmanager
def progress(**arguments: Any) -> Iterator[Any]:
    """Yield a progress bar of tqdm, which appears after a second, in a notebook as a widget."""
    global _bars
    _bars += 1
    try:
        with contextlib.closing(_bar(delay=DELAY, **arguments)) as bar:
            yield bar
    finally:
        _bars -= 1


@contextlib.contextmanager
def status_line(what: str) -> Iterator[None]:
    """Show a line with the elapsed time while the block takes longer than a second."""
    if not _is_interactive():
        yield
        return
    stopped = threading.Event()
    thread = threading.Thread(target=_show, args=(what, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def shell() -> Any:
    """Return the IPython shell of this process; None without one."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def _is_interactive() -> bool:
    """Return whether the standard error is a terminal, or the process is a notebook's kernel."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return terminal or "IPKernelApp" in getattr(shell(), "config", ())


def _show(what: str, stopped: threading.Event) -> None:
    start, line = time.monotonic(), None
    while not stopped.wait(DELAY):
        if _bars:
            continue
        if line is None:
            line = _bar(bar_format="{desc}")
        line.set_description_str(f"{what}, {time.monotonic() - start:.0f} s")
    if line is not None:
        line.close()


def _bar(**arguments: Any) -> Any:
    """Return a progress bar of tqdm, hidden without a terminal or if the log passes only errors.

    Importing tqdm takes 50 ms.
    """
    if not (_is_interactive() and log.isEnabledFor(logging.WARNING)):

        def nothing(value: object) -> None:
            pass

        return SimpleNamespace(update=nothing, set_description_str=nothing, close=lambda: None)
    tqdm = importlib.import_module("tqdm.auto").tqdm
    return tqdm(file=sys.stderr, leave=False, **arguments)
