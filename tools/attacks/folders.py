"""Ancestors of the cache folder: all combinations of owners, groups, modes and links."""

import os
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from other_user import ME, OTHER, done_by

from minigraph.platform import trust

OWNERS = (0, ME, ME, OTHER)
GROUPS = (ME, OTHER)
MODES = (0o700, 0o755, 0o755, 0o775, 0o757, 0o777, 0o1777, 0o1770)
LINKS = (None, None, None, 0, ME, OTHER)


class Part(NamedTuple):
    """A folder of a path: its owner, group and mode, and the owner of a link to it or None."""

    owner: int
    group: int
    mode: int
    link: int | None


def random_part(draw):
    """Return a random part, more often a safe one."""
    if draw.random() < 0.6:
        return Part(draw.choice((0, ME)), ME, 0o755, draw.choice((None, 0, ME)))
    return Part(*map(draw.choice, (OWNERS, GROUPS, MODES, LINKS)))


def make_folders(parts, root):
    """Create the folders of a path below `root`, and return the path."""
    path = root
    for name, part in zip("abcde", parts, strict=False):
        real = path / name
        real.mkdir()
        os.chown(real, part.owner, part.group)
        real.chmod(part.mode)
        path = real
        if part.link is not None:
            path = real.with_name(f"to-{name}")
            path.symlink_to(name)
            os.lchown(path, part.link, part.link)
    return path


def is_safe(parts):
    """Whether only ME and root can change the folders of a path, and ME can reach the last."""
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if OTHER in (part.owner, part.link):
            return False
        if part.mode & 0o022 and (last or not part.mode & 0o1000):
            return False  # the groups have no name, so anyone may be in them
        searchable = part.mode & (
            0o100 if part.owner == ME else 0o010 if part.group == ME else 0o001
        )
        if not last and not searchable:
            return False
    return True


def refused(path):
    """Return whether this user cannot reach a folder, or does not trust it."""
    try:
        trust.check_folder(path)
    except OSError:
        return True
    return False


def ancestors(seed, count=150):
    """Check as an ordinary user which random folders are trusted."""
    if os.geteuid() != 0:
        return Counter({"left out, because this is not root": 1})
    draw = random.Random(seed)
    chains = [[random_part(draw) for _ in range(draw.randint(1, 5))] for _ in range(count)]
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        os.chmod(above, 0o755)
        paths = []
        for i, parts in enumerate(chains):
            root = Path(above, str(i))
            root.mkdir(mode=0o755)
            paths.append(make_folders(parts, root))
        refusals = done_by(ME, lambda: [refused(path) for path in paths])
    counts = Counter()
    for parts, was_refused in zip(chains, refusals, strict=True):
        assert was_refused == (not is_safe(parts)), (was_refused, *parts)
        counts["folders refused" if was_refused else "folders trusted"] += 1
    return counts
