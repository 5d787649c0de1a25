"""Files of functions and programs: pages, graphs, traces, results."""

import os
import resource
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import minigraph as mg
from minigraph.platform.regular_file import write_text


@pytest.mark.parametrize("method", ["to_html", "to_dot", "to_chrome_trace"])
def test_a_text_that_cannot_be_written_is_an_error_of_one_line(method, tmp_path):
    x = mg.input("x", (2,))
    function = mg.comp_graph("reference").compile([x], x + 1)
    writer = function.profile(np.ones(2)) if method == "to_chrome_trace" else function
    path = tmp_path / "missing" / "file"
    with pytest.raises(mg.GraphError) as raised:
        getattr(writer, method)(path)
    assert str(raised.value) == f"{path} cannot be written: No such file or directory"


@contextmanager
def files_up_to(size):
    """Let no file become larger, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_there_is_no_space_the_earlier_file_stays(tmp_path):
    path = tmp_path / "results.json"
    write_text(path, "earlier")
    with files_up_to(4096), pytest.raises(mg.GraphError, match="cannot be written: File too large"):
        write_text(path, "later" * 4096)
    assert path.read_text() == "earlier"
    assert os.listdir(tmp_path) == [path.name]


def test_a_pipe_gets_the_text(tmp_path, promptly):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    result = []
    reader = threading.Thread(target=lambda: result.append(path.read_text()))
    reader.start()
    write_text(path, "x → y")
    reader.join()
    assert result == ["x → y"]
    assert path.is_fifo()


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(mg.GraphError, match="cannot be written: Is a directory"):
        write_text(tmp_path, "x")
