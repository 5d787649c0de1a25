"""Writing a file of arrays is all or nothing.

That a writer which hangs is not waited for without limit is a test of `cache/test_cache_file.py`.
"""

import contextlib
import fcntl
import os
import signal
import stat
import time

import numpy as np
import pytest
from new_process import start
from other_user import OTHER, as_root

import minigraph as mg
from minigraph.errors import GraphError
from minigraph.serialization import load, save


def test_a_write_that_fails_leaves_the_old_file_and_no_other(path, monkeypatch):
    save(path, {"a": np.ones(3)})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GraphError, match=r"model.safetensors .*No space left on device"):
        save(path, {"a": np.zeros(3)})
    assert load(path)["a"].tolist() == [1, 1, 1]
    assert os.listdir(path.parent) == [path.name]


def test_the_data_are_on_disk_before_the_file_has_its_name(path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, n=name, f=original: (done.append(n), f(*args))[1]
        )
    save(path, {"a": np.ones(3)})
    assert done == ["fsync", "replace"]


def test_a_link_stays_a_link_and_files_have_the_usual_rights(path, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    link = tmp_path / "latest"
    link.symlink_to(path)
    save(link, {"a": np.ones(1)})
    assert link.is_symlink()
    assert load(path)["a"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_who_may_read_a_file_stays(path):
    save(path, {"a": np.ones(1)})
    path.chmod(0o640)
    save(path, {"a": np.zeros(1)})
    assert load(path)["a"] == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_or_a_device_is_not_replaced(path, tmp_path, linked, promptly):
    """As root this would put a file in the place of /dev/null."""
    os.mkfifo(path)
    target = path
    if linked:
        target = tmp_path / "link"
        target.symlink_to(path)
    with pytest.raises(GraphError, match="is no regular file"):
        save(target, {"a": np.ones(1)})
    assert path.is_fifo()
    assert {path, target} == set(tmp_path.iterdir())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("at", ["os.fsync", "os.replace", "fcntl.flock"])
@pytest.mark.parametrize("after", [False, True])
def test_a_handler_of_a_signal_saves_to_the_path_that_is_being_saved(
    path, monkeypatch, promptly, at, after, fails
):
    module, name = (os if at.startswith("os") else fcntl), at.partition(".")[2]
    original, waiting = getattr(module, name), [True]

    def interrupted(*args):
        first, waiting[:] = bool(waiting), []
        result = original(*args) if after or not first else None
        if first:
            signal.raise_signal(signal.SIGUSR1)
        return original(*args) if first and not after else result

    def handler(number, frame):
        with contextlib.suppress(GraphError):
            if fails:
                monkeypatch.setattr(os, "fchmod", refuse)
            save(path, {"a": np.full(3, 2.0)})

    def refuse(*args):
        monkeypatch.undo()
        raise OSError(28, "No space left on device")

    save(path, {"a": np.ones(3)})
    monkeypatch.setattr(module, name, interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        save(path, {"a": np.zeros(3)})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert load(path)["a"].tolist() == [0 if fails else 2] * 3
    assert os.listdir(path.parent) == [path.name]
    save(path, {"a": np.full(3, 3.0)})
    assert load(path)["a"].tolist() == [3] * 3


WRITER = """
import sys, numpy, minigraph.serialization
state = {"a": numpy.full(1 << 20, int(sys.argv[2]), numpy.uint8)}
while True:
    minigraph.serialization.save(sys.argv[1], state)
"""


def test_writers_of_a_file_take_turns_and_what_they_leave_when_killed_goes(path):
    in_progress = path.parent / ".model.safetensors.tmp"
    writers = [start("-c", WRITER, path, value) for value in (1, 2)]
    seen = set()
    deadline = time.monotonic() + 60
    try:
        while len(seen) < 2 or not in_progress.exists():
            assert time.monotonic() < deadline
            assert [writer.poll() for writer in writers] == [None, None]
            if path.exists():
                values = load(path)["a"]
                assert values.min() == values.max()
                seen.add(values[0].item())
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    left = set(os.listdir(path.parent)) - {path.name}
    assert left <= {in_progress.name}
    in_progress.touch()  # also if the writer was killed just after the end of a write
    save(path, {"a": np.ones(3)})
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_what_is_in_the_way_of_a_temporary_file_is_replaced(path, kind, promptly):
    in_the_way = path.parent / ".model.safetensors.tmp"
    if kind == "pipe":
        os.mkfifo(in_the_way)
    else:
        in_the_way.write_bytes(b"left")
    save(path, {"a": np.ones(3)})
    assert load(path)["a"].tolist() == [1, 1, 1]
    assert os.listdir(path.parent) == [path.name]


@as_root
def test_a_link_of_another_user_is_not_saved_through(path):
    """In a folder where all may make files it could lead to any file of ours."""
    mine = path.parent / "mine"
    mine.write_text("precious")
    path.symlink_to(mine)
    os.lchown(path, OTHER, OTHER)
    with pytest.raises(mg.GraphError, match="is a link of another user"):
        save(path, {"a": np.ones(1)})
    assert mine.read_text() == "precious"


def test_a_link_in_the_way_of_a_temporary_file_is_not_followed(path):
    other = path.parent / "other"
    other.write_bytes(b"keep")
    (path.parent / ".model.safetensors.tmp").symlink_to(other)
    with pytest.raises(GraphError, match="cannot be written"):
        save(path, {"a": np.ones(3)})
    assert other.read_bytes() == b"keep"


def test_the_longest_name_of_a_file_can_be_saved(tmp_path):
    path = tmp_path / ("ä" * 127)
    save(path, {"a": np.ones(3)})
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("name", ["absent/model", ".", "file/model", "a\0b"])
def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(GraphError, match="cannot be written") as caught:
        save(tmp_path / name, {"a": np.ones(1)})
    assert str(tmp_path / name) in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]
