"""A journal in front of a SQLite store: the point from which a commit is durable."""
