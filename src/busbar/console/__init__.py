"""The web console: pages about a namespace that somebody else reaches."""
