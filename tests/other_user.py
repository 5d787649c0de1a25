"""Work that a child of this process does as another user."""

import ctypes
import json
import os
import signal
import traceback
import warnings
from contextlib import contextmanager

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
ME, OTHER = 12345, 23456  # users, each with a group of the same number
PR_SET_DUMPABLE = 4


def begin(user, work):
    """Start `work()` as a user without further groups; return the process and a pipe."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads: the child does not need them
        child = os.fork()
    if child:
        os.close(write)
        return child, read
    try:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        # As after `exec`; a process that has changed its user may not look into its /proc/self.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        answer = {"result": work()}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    with open(write, "w") as pipe:
        json.dump(answer, pipe)
    os._exit(0)


def done_by(user, work):
    """Return the result of `work()`, by way of JSON, in a child process of another user."""
    child, pipe = begin(user, work)
    with open(pipe) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    answer = json.loads(text)
    assert "error" not in answer, answer["error"]
    return answer["result"]


@contextmanager
def meanwhile(user, work):
    """Let another user do `work()` over and over in a child."""

    def again():
        while True:
            work()

    child, pipe = begin(user, again)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(pipe)
