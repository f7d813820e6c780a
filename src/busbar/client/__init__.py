"""A client of Busbar for Python programs, on its own AMQP engine and asyncio, without the server's dependencies."""
