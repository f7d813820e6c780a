"""Libraries in C that are preloaded into a process: each breaks, slows down or observes calls to the system."""
