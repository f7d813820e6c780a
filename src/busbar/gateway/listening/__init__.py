"""Listeners: accepted sockets, protocol detection, limits of connections."""
