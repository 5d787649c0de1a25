"""From expressions to a function."""
