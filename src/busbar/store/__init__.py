"""Messaging stores: where fragments are durable."""
