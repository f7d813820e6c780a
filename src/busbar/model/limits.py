"""The limits of a namespace. All are settings: tests lower the documented minimums, operators raise the maximums."""

from __future__ import annotations

from dataclasses import dataclass

from busbar.model.entities import Tier


@dataclass(frozen=True, slots=True)
class Limits:
    """Documented limits by default. Times in ms, sizes in bytes."""

    max_message_size: int = 256 * 1024
    default_message_size: int = 0  # of an entity that names none; 0: max_message_size
    max_header_size: int = 64 * 1024
    min_lock_duration: int = 5_000
    max_lock_duration: int = 300_000
    max_id_length: int = 128
    max_path_length: int = 260
    # Entities
    max_name_length: int = 50  # of subscriptions and rules
    max_entities: int = 10_000  # queues and topics; 0: as many as there is room for
    max_partitioned_entities: int = 100  # of them
    max_subscriptions: int = 2_000  # of a topic
    max_rules: int = 2_000  # of a subscription
    max_authorization_rules: int = 12  # of an entity
    max_user_metadata: int = 1024
    max_expression_length: int = 1024  # of a filter or an action
    min_size_in_megabytes: int = 1024
    max_size_in_megabytes: int = 5120
    size_increment: int = 1024  # MaxSizeInMegabytes is a multiple of it
    min_time_to_live: int = 1_000
    min_duplicate_window: int = 20_000
    max_duplicate_window: int = 7 * 86_400_000
    min_auto_delete_on_idle: int = 300_000
    max_entity_connections: int = 5_000  # AMQP connections with a link to one entity
    max_dead_letter_text: int = 4096
    max_peek_bytes: int = 256 * 1024
    max_peek_count: int = 250
    max_schedule_count: int = 100
    max_delete_count: int = 4000
    # Transactions
    max_transactions: int = 100  # open at a time on one connection
    transaction_timeout: int = 120_000  # after its first operation a transaction is rolled back
    max_transaction_messages: int = 100  # sent or scheduled in one transaction
    max_transaction_settlements: int = 5_000  # in one transaction
    max_transaction_bytes: int = (
        32 * 1024 * 1024
    )  # of one connection, in open transactions; two messages always fit
    max_all_transaction_bytes: int = 256 * 1024 * 1024  # of all connections of a gateway together
    # Taps
    max_taps: int = 20  # of an entity, those of its dead-letter queue included
    max_tap_page_bytes: int = 3 * 1024 * 1024  # of messages in one reply; a single larger one is shown too
    max_tap_page_count: int = 20_000
    max_metrics_samples: int = (
        240_000  # of entities and their taps, in one scrape: 10,000 busy queues without taps
    )
    # Connections: what a client may hold before and after it has authenticated
    max_frame_size: int = 64 * 1024
    idle_timeout: int = 240_000
    token_timeout: int = 20_000  # no successful put-token by then: the connection is dropped
    token_grace: int = 60_000  # an expired token still counts for as long, so that clocks may differ
    session_accept_timeout: int = 60_000  # for the next available message session, if the client sets no time
    first_link_timeout: int = 60_000  # no link by then: closed
    max_sessions: int = 256
    max_links: int = 256
    max_unsettled: int = 5_000  # deliveries a link may hold unsettled before it gets no more
    max_connections: int = 5_000
    max_unauthenticated_connections: int = 1_000  # they have named a protocol, and put no token yet
    max_uncommitted_bytes: int = (
        4 * 1024 * 1024
    )  # of one connection, not yet durable, before its reading pauses
    max_reply_bytes: int = 8 * 1024 * 1024  # of one connection: replies that wait until its client takes them
    max_all_reply_bytes: int = 64 * 1024 * 1024  # of all connections together
    # Accepted connections that have not named their protocol yet
    handshake_timeout: int = (
        10_000  # from accepting to the first bytes that name a protocol, the TLS handshake included
    )
    max_silent_connections: int = 4_000  # accepted, and nothing but their first byte is known
    max_tls_handshakes: int = 200  # TLS handshakes under way at once
    # HTTP
    http_head_size: int = 64 * 1024  # request line and headers together
    http_head_timeout: int = 15_000  # from the first byte of a request to the end of its headers
    http_body_timeout: int = 60_000  # from the end of the headers to the end of the body
    http_idle_timeout: int = 75_000  # between two requests of a connection
    http_management_body: int = 1024 * 1024
    max_http_connections: int = 2_000  # beyond it the one that has been idle longest makes room
    transfer_patience: int = 60_000  # for which a message that is forwarded waits for a target that is full
    express_delay: int = 5_000  # for which messages of an express entity are in memory alone
    # Messaging stores
    store_timeout: int = 5_000  # a disk that does not answer for so long takes its store out, until it does
    store_lease: int = 6_000  # an owner of which nothing is seen for so long is replaced (PostgreSQL)
    live_timeout: int = 60_000  # if no disk of a process answers for so long, /live advises to restart it
    inline_commit_messages: int = 0  # commits of at most so many messages are made on the event loop (ADR 27)
    # Broker processes
    balance_delay: int = 30_000  # for which stores are not moved after a broker process has come or gone
    broker_ping_timeout: int = 10_000  # one that does not answer for so long is ended, and started again

    def message_size(self, own: int) -> int:
        """The maximum size of a message of an entity whose description names `own` (0: none). The limit of the namespace
        always holds, because it may have been lowered since the entity was created."""
        return min(own or self.default_message_size or self.max_message_size, self.max_message_size)


def limits_of(tier: Tier) -> Limits:
    """The documented limits of a tier."""
    if tier is not Tier.PREMIUM:
        return Limits()
    return Limits(
        max_message_size=100 * 1024 * 1024,
        default_message_size=1024 * 1024,
        max_entities=0,
        max_size_in_megabytes=81_920,
    )


SHARED_LIMITS = (
    "max_http_connections",
    "max_unauthenticated_connections",
    "max_silent_connections",
)
"""Limits that are divided among the gateways: of connections that have not authenticated, and of HTTP, which is not counted.
All others are those of the namespace. Gateways share the limits of AMQP connections by cluster/connection_share.py."""
