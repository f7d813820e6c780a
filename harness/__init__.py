"""What tests and benchmarks share, and no wheel ships: a server process, an AMQP driver, a memory store, fault shims.

The harness imports `busbar` only. Tests and benchmarks import the harness, never each other.
"""
