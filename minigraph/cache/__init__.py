"""The cache: measurements and kernel binaries that processes share through files.

The disk is not trusted: a damaged, foreign or outdated entry counts as missing.  If nothing can be
written, the results are the same, but each process makes its entries again.  The package depends on
no graph, compiler or setting.
"""

from minigraph.cache.database import KINDS, Entry, differences, environment_of
from minigraph.cache.store import Store, open_store
