"""The words everyone uses: messages, entities, limits, errors, and the values that gateways and brokers exchange.

Nothing here reads a clock, a socket or a file, and nothing here imports another room.
"""
