"""The version of minigraph."""

__version__ = "0.2.0"
