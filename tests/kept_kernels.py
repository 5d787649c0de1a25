"""The kernels that runs of the tests have compiled, in a database for later runs."""

import sqlite3
import time
from contextlib import closing

from minigraph.cache import Store, database
from minigraph.cache.store import SIZE_LIMIT

NEW_BLOBS = """INSERT INTO blobs
    SELECT * FROM run.blobs WHERE digest NOT IN (SELECT digest FROM main.blobs)"""


def copy(kept, target):
    """Let a new database at `target` begin with the kernels that are kept."""
    target.touch(0o600)
    with closing(sqlite3.connect(kept)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def merge(source, kept, limit=SIZE_LIMIT):
    """Add the kernels of a database to those that are kept, whatever other runs add meanwhile.

    Above a limit of bytes, that of a cache folder, the least recently used go.
    """
    kept.touch(0o600)
    with closing(sqlite3.connect(kept, timeout=60, isolation_level=None)) as db:
        db.execute("ATTACH ? AS run", (str(source),))
        db.execute("BEGIN IMMEDIATE")
        if not database.has_tables(db):
            database.create(db)
        db.execute("INSERT OR REPLACE INTO entries SELECT * FROM run.entries WHERE kind = 'jit'")
        db.execute(NEW_BLOBS)
        db.execute(database.DELETE_UNUSED_BLOBS)
        Store(kept.parent, limit)._evict(db, time.time())
        db.execute("COMMIT")
