"""Busbar in Spark: source, sink, and what they share. It reaches a broker through `busbar.client` alone."""
