"""The messaging store in a PostgreSQL database: one schema for each store."""
