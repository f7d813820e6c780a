"""The wire protocol: bytes in, events out. No socket, no clock, no asyncio."""
