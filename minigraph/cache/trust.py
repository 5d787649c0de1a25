"""Which files and folders nobody else can change: machine code is loaded from no others.

A folder is trusted if it and all folders above it belong to root or to this user, and no other user
may write to them.  In a folder with the sticky bit, such as /tmp, all users may make files, but
only a file's owner renames or removes it: such a folder may stand above a trusted one.  Links are
followed where they belong to root or to this user.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from minigraph.platform.regular_file import LINK, MOST_LINKS, link, ours

FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW  # O_PATH: also where only search is allowed
FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW  # O_NONBLOCK: do not wait for a pipe's writer
ACCESS_LIST = "system.posix_acl_access"


class Untrusted(PermissionError):
    """Another user may change a file or a folder; `strerror` says which and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, f"{path} {why}")


def open_folder(path: Path, make: bool = False, shared: bool = False) -> int:
    """Return a descriptor of a trusted folder, for `dir_fd`; Untrusted if it is none.

    Each component is opened in the folder before it, which was found to be trusted, so nobody can
    exchange anything between the check and the use.

    make    make the folder and those above it if they are missing, for their owner alone
    shared  whether the folder may be one with the sticky bit, to make a folder of our own in it
    """
    return _open(path, FOLDER, make, shared)


def open_file(path: Path) -> int:
    """Return a descriptor of a file in a trusted folder, to read; Untrusted if others write it.

    The folder may be one with the sticky bit.
    """
    return _open(path, FILE, make=False, shared=False)


@contextlib.contextmanager
def listed(folder: int) -> Iterator[int]:
    """Give a descriptor of an open folder that can be listed and locked."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def others(handle: int) -> str:
    """Return why users other than this one and root may change a file, or an empty string."""
    return _others(handle, os.fstat(handle))


def foreign(folder: int, name: str) -> str:
    """Return why others may have placed or changed a file in a folder, or an empty string.

    folder  a descriptor
    Raises FileNotFoundError if there is no file.
    """
    handle = os.open(name, LINK, dir_fd=folder)
    try:
        status = os.fstat(handle)
        return _others(handle, status) if stat.S_ISREG(status.st_mode) else "is no file"
    finally:
        os.close(handle)


def _others(handle: int, status: os.stat_result) -> str:
    if not ours(status):
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by other users"
    if status.st_mode & stat.S_IWGRP and not _private(handle, status.st_gid):
        return "can be written by other users of its group"
    return ""


def _open(path: Path, flags: int, make: bool, shared: bool) -> int:
    """Return a descriptor, opened with these flags, of what a path leads to."""
    ahead = _components(str(path.absolute()))
    links = 0
    here, handle = "", os.open("/", FOLDER)
    try:
        while True:
            status = os.fstat(handle)
            why = _others(handle, status)
            # With the sticky bit, only a file's owner, the folder's and root rename or remove it.
            sticky = ours(status) and status.st_mode & stat.S_ISVTX
            if why and not (sticky and (ahead or shared)):
                raise Untrusted(here or "/", why)
            if not ahead:
                return handle
            # From now on, the next component stays what it is found to be.
            name = ahead.pop()
            try:
                found = _enter(handle, name, FOLDER if ahead else flags, make)
                here = here.rpartition("/")[0] if name == ".." else f"{here}/{name}"
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):  # what a link gives
                    raise
                target = _link(handle, name, f"{here}/{name}")
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                if not target:
                    raise NotADirectoryError(errno.ENOTDIR, f"{here}/{name} is no folder") from None
                ahead += _components(target)
                if not target.startswith("/"):
                    continue
                here, found = "", os.open("/", FOLDER)
            os.close(handle)
            handle = found
    except BaseException:
        os.close(handle)
        raise


def _components(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _enter(folder: int, name: str, flags: int, make: bool) -> int:
    """Return a descriptor of what a folder holds; `make` makes a folder that is missing."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _link(folder: int, name: str, path: str) -> str:
    """Return where a link in a folder leads; "" if there is none, Untrusted if it is another's.

    folder  a descriptor
    path    names the link in the error
    """
    target, own = link(name, folder)
    if not own:
        raise Untrusted(path, "is a link of another user")
    return target


def _private(handle: int, group: int) -> bool:
    """Return whether this user alone is what a file's group stands for.

    An access list shows as the rights of the group, and may name other users.
    """
    if not _private_group(group, os.geteuid()):
        return False
    try:
        os.getxattr(f"/proc/self/fd/{handle}", ACCESS_LIST)
    except OSError as error:
        return error.errno in (errno.ENODATA, errno.EOPNOTSUPP)
    return False


@functools.cache
def _private_group(group: int, user: int) -> bool:
    """Return whether a group is the private one of a user, without any other member.

    Many systems give each user such a group, of the same name, and let it write to all that the
    user makes.  Root's group is not taken for one: programs that drop their rights may keep it.
    """
    if not user:
        return False
    try:
        me, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return (
        me.pw_gid == group
        and members.gr_name == me.pw_name
        and set(members.gr_mem) <= {me.pw_name}
        and all(other.pw_uid == user for other in pwd.getpwall() if other.pw_gid == group)
    )
