"""Named arrays: to files and back, and into parameters."""

from minigraph.serialization.arrays import (
    Incompatible,
    Matching,
    load,
    load_matching,
    restore,
    save,
)
