"""Hosting of fragments on messaging stores, the catalogue of entities, and the port that gateways reach them by."""
