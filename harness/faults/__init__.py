"""Libraries in C that are preloaded into a process: each makes system calls fail, slows them down or observes them."""
