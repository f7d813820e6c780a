"""The semantics of a fragment, once, as a pure machine. No clock, no socket, no disk."""
