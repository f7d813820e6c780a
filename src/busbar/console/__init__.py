"""The web console: pages about a namespace, which the caller provides."""
