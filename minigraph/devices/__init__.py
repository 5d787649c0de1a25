"""Where programs run."""
