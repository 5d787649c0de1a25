"""Services of the operating system: files, signals, processes."""
