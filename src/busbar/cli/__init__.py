"""The command line: `busbar serve` and its friends."""
