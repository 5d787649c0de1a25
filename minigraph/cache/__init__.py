"""What is kept on disk between processes: measurements and kernel binaries.

The disk is not trusted.  An entry that is damaged, foreign or out of date counts as missing.  Where
nothing can be written, the results are the same and each process makes its entries again.  This
package knows files, but no graph, no compiler and no setting.
"""

from minigraph.cache.binaries import Binaries
from minigraph.cache.entry import KINDS, Entry, environment_of
from minigraph.cache.folder import Folder
from minigraph.cache.measurements import Measurements
