"""Save named arrays to files, load them, and assign them to parameters."""

from minigraph.serialization.arrays import (
    Incompatible,
    Matching,
    load,
    load_matching,
    restore,
    save,
)
