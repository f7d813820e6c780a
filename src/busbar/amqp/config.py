"""What one side of a connection announces and enforces."""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from busbar.amqp.output_buffer import LEAST_MAX_FRAME


@final
class ConnectionConfig:
    """What one side announces and enforces. `server` false: the client role, with its user and password."""

    def __init__(
        self,
        container_id: str,
        hostname: str | None = None,
        max_frame_size: int = 65536,
        channel_max: int = 255,
        handle_max: int = 255,
        idle_timeout: int = 240_000,
        mechanisms: list[str] | None = None,
        incoming_window: int = 5000,
        outgoing_window: int = 5000,
        max_sessions: int = 256,
        max_links: int = 1024,
        max_message_size: int = 262_144,
        properties: dict[object, object] | None = None,
        server: bool = True,
        user: str = "",
        password: str = "",
        max_partial_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        if max_frame_size < LEAST_MAX_FRAME:
            raise ValueError(f"max_frame_size is {max_frame_size}; AMQP needs at least {LEAST_MAX_FRAME}")
        if not 0 <= channel_max <= 0xFFFF:
            raise ValueError(f"channel_max is {channel_max}; it should be 0 to 65535")
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size: i64 = max_frame_size
        self.channel_max: i64 = channel_max
        self.handle_max: i64 = handle_max
        self.idle_timeout: i64 = idle_timeout
        self.mechanisms: list[str] = mechanisms if mechanisms is not None else ["ANONYMOUS"]
        self.incoming_window: i64 = incoming_window
        self.outgoing_window: i64 = outgoing_window
        self.max_sessions: i64 = max_sessions
        self.max_links: i64 = max_links
        self.max_message_size: i64 = max_message_size
        self.properties = properties
        self.server = server
        self.user = user
        self.password = password
        self.max_partial_bytes: i64 = max_partial_bytes
