"""The embedded messaging store: SQLite files in a directory."""
