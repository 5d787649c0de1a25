"""What the operating system gives: files, signals, processes."""
