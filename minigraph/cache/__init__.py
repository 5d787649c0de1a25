"""The cache: measurements and kernel binaries that processes share through files.

The disk is not trusted.  An entry that is damaged, foreign or out of date counts as missing.  Where
nothing can be written, the results are the same and each process makes its entries again.  This
package knows files, but no graph, no compiler and no setting.
"""

from minigraph.cache.database import KINDS, Entry, differences, environment_of
from minigraph.cache.store import Store, open_store
