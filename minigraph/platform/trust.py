"""Trusted files and folders, which no other user can change.  Machine code is read from them only.

A folder is trusted if it and all folders above it belong to root or to this user, and no other user
may write to them.  A trusted folder may be in a folder with the sticky bit, such as /tmp, as only
the owner of a file there may rename or remove it.  Links are followed if they belong to root or to
this user.

A path is checked from the root down.  As no other user can change a trusted folder, its contents
may then be checked and opened by path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import grp
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from minigraph.platform import forks
from minigraph.platform.regular_file import MAX_LINKS, is_trusted_owner, lock_file

ACCESS_LIST = "system.posix_acl_access"
# Seconds after which an unlocked temporary folder is a leftover: a process locks its new folder
# after a moment, and some disks do not support locks.
LEFTOVER_AGE = 600.0
_searched: set[Path] = set()  # folders that this process has searched for leftovers


class Untrusted(PermissionError):
    """Another user may change a file or a folder; `strerror` says which and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EPERM, f"{path} {reason}")


def check_folder(
    path: Path, create: bool = False, shared: bool = False, file: bool = False
) -> None:
    """Raise Untrusted if another user can change the folder that a path leads to.

    create  whether to make missing folders of the path, with access for their owner only
    shared  whether the folder may have the sticky bit, so that we can make a folder in it
    file    whether the path leads to a file instead
    """
    names = _components(str(path.absolute()))
    current, links = Path("/"), 0
    while True:
        status = current.lstat()
        reason = why_untrusted(current, status)
        # With the sticky bit, only root and the owners of file and folder can rename or remove it.
        sticky = is_trusted_owner(status) and status.st_mode & stat.S_ISVTX
        if reason and not (sticky and (names or shared)):
            raise Untrusted(current, reason)
        if (names or not file) and not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, f"{current} is no folder")
        if not names:
            return
        name = names.pop()
        child = current.parent if name == ".." else current / name
        if create and not os.path.lexists(child):
            with contextlib.suppress(FileExistsError):  # another process was faster
                child.mkdir(0o700)
        if not child.is_symlink():
            current = child
            continue
        if not is_trusted_owner(child.lstat()):
            raise Untrusted(child, "is a link of another user")
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = os.readlink(child)
        names += _components(target)
        current = Path("/") if target.startswith("/") else current


def why_untrusted(path: Path, status: os.stat_result) -> str:
    """Return why users other than this one and root may change a file; "" if they may not."""
    if not is_trusted_owner(status):
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by other users"
    if status.st_mode & stat.S_IWGRP and not _is_private(path, status.st_gid):
        return "can be written by other users of its group"
    return ""


@contextlib.contextmanager
def locked_folder(
    path: Path, exclusive: bool, timeout: float, create: bool = False
) -> Iterator[None]:
    """Hold an exclusive or a shared lock on a trusted folder.

    create  make a missing folder
    Raises TimeoutError after `timeout` seconds, FileNotFoundError if the folder is missing, and
    another OSError if it is not trusted.
    """
    check_folder(path, create)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with forks.closed_in_children(handle):
            lock_file(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, timeout)
            try:
                yield
            finally:
                # Closing does not unlock if a child process that C code has forked has the handle.
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


@contextlib.contextmanager
def temporary_folder(root: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder in `root`, with access for its owner only, and remove it afterwards.

    Leftovers of killed processes of this user are removed, too.  Raises OSError if no folder can be
    made, or if another user could replace it.
    """
    check_folder(root, shared=True)
    if root not in _searched:
        _searched.add(root)
        for leftover in root.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(leftover)
    folder, process = Path(tempfile.mkdtemp(prefix=prefix, dir=root)), os.getpid()
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a disk that cannot lock
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(handle)
        if os.getpid() == process:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove an old folder of this user that is not locked; raise OSError if it is locked."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        if status.st_uid == os.geteuid() and status.st_mtime < time.time() - LEFTOVER_AGE:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(handle)


def _components(path: str) -> list[str]:
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _is_private(path: Path, group: int) -> bool:
    """Return whether a file's group permissions apply to this user alone.

    An access list appears as group permissions, and may name other users.
    """
    if not _is_private_group(group, os.geteuid()):
        return False
    try:
        os.getxattr(path, ACCESS_LIST)
    except OSError as error:
        return error.errno in (errno.ENODATA, errno.EOPNOTSUPP)
    return False


@functools.cache
def _is_private_group(group: int, user: int) -> bool:
    """Return whether a group is the private group of a user, without any other member.

    On many systems each user has a group of the same name, which may write to the user's files.
    Root's group does not count as private, as programs that drop their rights may keep it.
    """
    if not user:
        return False
    try:
        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return (
        owner.pw_gid == group
        and members.gr_name == owner.pw_name
        and set(members.gr_mem) <= {owner.pw_name}
        and all(other.pw_uid == user for other in pwd.getpwall() if other.pw_gid == group)
    )
