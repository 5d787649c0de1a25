"""Checks of a function while it runs."""
