"""Other servers that keep messages, each with a small client that pipelines: what `bench/peers.py` compares Busbar with.

Every server syncs a message to disk before it acknowledges it, as Busbar does. It listens on loopback, and its data is in a
temporary directory.
"""
