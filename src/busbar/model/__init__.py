"""The values that all rooms share: messages, entities, limits, errors, and what gateways and brokers exchange.

No code here reads a clock, a socket or a file, and none imports another room.
"""
