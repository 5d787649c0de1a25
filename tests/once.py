"""Libraries and folders that processes which run tests together make once."""

import fcntl


def once(path, make):
    """Return a path; the first process that asks calls `make(new)`, and `new` becomes the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
    return path
