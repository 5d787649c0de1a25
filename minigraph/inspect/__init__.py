"""Reports, pages and profiles of compiled functions."""
