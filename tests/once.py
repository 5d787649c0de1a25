"""Files and folders that processes which run tests together make once, or that later runs find."""

import fcntl
import os
import time

KEPT_SECONDS = 7 * 86400  # how long a file stays after its last use


def kept_folder(config, name, otherwise):
    """Return a folder of pytest's cache, in which later runs find what they, too, would make.

    otherwise  a folder that is used after `-p no:cacheprovider`
    """
    if getattr(config, "cache", None) is None:
        otherwise.mkdir(exist_ok=True)
        return otherwise
    folder = config.cache.mkdir(name)
    for path in folder.iterdir():
        if time.time() - path.stat().st_mtime > KEPT_SECONDS:
            path.unlink(missing_ok=True)
    return folder


def once(path, make):
    """Return a path; the first process that asks calls `make(new)`, and `new` becomes the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
    os.utime(path)
    return path
