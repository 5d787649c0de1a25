"""Which nodes become one generated kernel or one launch."""
