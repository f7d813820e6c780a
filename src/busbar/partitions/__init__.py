"""Sends, receives and accepts sessions over the fragments of one entity, for AMQP and HTTP."""
