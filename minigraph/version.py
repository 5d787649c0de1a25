"""The version of minigraph."""

__version__ = "0.1.0"
