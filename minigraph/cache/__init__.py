"""What is kept on disk between processes.  Knows files; no graph, no compiler and no setting.

Disk is not trusted: what is missing, damaged, foreign or out of date is as if it were not there,
and a disk that cannot be written costs the time to make things again, never a result.
"""

from minigraph.cache.binaries import Binaries
from minigraph.cache.entry import KINDS, Entry, environment
from minigraph.cache.folder import Folder
from minigraph.cache.measurements import Measurements
