"""Busbar: brokered messaging with partitioned queues and topics that anyone can run."""

__version__ = "0.1.0"
