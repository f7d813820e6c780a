"""The limits of a namespace. All are settings: tests lower the documented minimums, operators raise the maximums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Documented limits by default. Times in ms, sizes in bytes."""

    max_message_size: int = 256 * 1024
    max_header_size: int = 64 * 1024
    min_lock_duration: int = 5_000
    max_lock_duration: int = 300_000
    max_id_length: int = 128
    max_path_length: int = 260
    max_entities: int = 10_000
    max_dead_letter_text: int = 4096
    peek_bytes: int = 256 * 1024
    peek_count: int = 250
    schedule_count: int = 100
    delete_count: int = 4000
    # Connections: what a peer may hold before and after it has proven who it is.
    max_frame_size: int = 64 * 1024
    idle_timeout: int = 240_000
    token_wait: int = 20_000  # no successful put-token by then: the connection is dropped
    link_wait: int = 60_000  # no link by then: closed
    max_sessions: int = 256
    max_links: int = 256
    max_unsettled: int = 5_000  # deliveries a link may hold unsettled before it gets no more
    max_connections: int = 5_000
    max_unproven_connections: int = 1_000  # speaking, no token yet
    incoming_bytes: int = 4 * 1024 * 1024  # of one connection, not yet durable, before its reading pauses
    # The door: what is allowed to somebody of whom nothing is known yet.
    hello_wait: int = (
        10_000  # from accepting to the first bytes that name a protocol, the TLS handshake included
    )
    max_silent_connections: int = 4_000  # accepted, and nothing but their first byte is known
    max_handshakes: int = 200  # TLS handshakes under way at once
    # HTTP
    http_head_size: int = 64 * 1024  # request line and headers together
    http_head_wait: int = 15_000  # from the first byte of a request to the end of its headers
    http_body_wait: int = 60_000  # from the end of the headers to the end of the body
    http_idle_wait: int = 75_000  # between two requests of a connection
    http_management_body: int = 1024 * 1024
    max_http_connections: int = 2_000  # beyond it the one that has been idle longest makes room
