"""A request-response node (`$cbs`, `<entity>/$management`): a pair of links, any number of requests under way."""

from __future__ import annotations

import asyncio

from busbar.amqp.events import Delivery
from busbar.amqp.outcomes import REJECTED, Outcome
from busbar.client.connection import ClientConnection, LinkEnd
from busbar.client.errors import BusbarClientError, ConnectionLost, OperationTimeout, error_of
from busbar.message.decoded import DecodedMessage, decode_message, encode_message
from busbar.model.errors import MalformedMessage

MOST_REQUESTS = 64
"""The maximum number of requests under way; a broker refuses more than a hundred."""

Waiting = dict[str, asyncio.Future[DecodedMessage]]


class RequestNode:
    def __init__(self, connection: ClientConnection, address: str) -> None:
        self.address = address
        self.connection = connection
        self._waiting: Waiting = {}
        self._requests = _Requests(self)
        self._replies = _Replies(self)
        self._reply_to = ""
        self._asked = 0
        self._is_open = False
        self._room = asyncio.Semaphore(MOST_REQUESTS)
        self.error: BusbarClientError | None = None

    @classmethod
    async def open(cls, connection: ClientConnection, address: str, timeout: float) -> RequestNode:
        node = cls(connection, address)
        node._reply_to = f"replies-{id(node):x}"
        await connection.attach_receiver(
            node._replies, address, timeout, settled=True, reply_address=node._reply_to
        )
        node._replies.link.grant(2 * MOST_REQUESTS)
        try:
            await connection.attach_sender(node._requests, address, timeout)
        except BaseException:
            connection.detach(node._replies.link)
            raise
        node._is_open = True
        return node

    async def ask(
        self, value: object, properties: dict[str, object], timeout: float, state: bytes = b""
    ) -> DecodedMessage:
        """Send a request and return the reply. Raises ConnectionLost, OperationTimeout, or the refusal of the link.

        `state` is the delivery state of the request, which may name a transaction.
        """
        async with self._room:
            if self.error is not None:
                raise self.error
            self._asked += 1
            number = str(self._asked)
            request = DecodedMessage(value, None, properties)
            request.message_id = number
            request.reply_to = self._reply_to
            answer: asyncio.Future[DecodedMessage] = asyncio.get_running_loop().create_future()
            self._waiting[number] = answer
            try:
                self._requests.link.deliver([number.encode()], [encode_message(request)], False, 0, state)
                self.connection.touch()
                async with asyncio.timeout(timeout):
                    return await answer
            except TimeoutError:
                raise OperationTimeout(f"'{self.address}' does not answer within {timeout:g} s.") from None
            finally:
                del self._waiting[number]

    def answered(self, number: object, reply: DecodedMessage) -> None:
        answer = self._waiting.get(number) if isinstance(number, str) else None
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def refused(self, number: str, error: BusbarClientError) -> None:
        answer = self._waiting.get(number)
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def ended(self, error: BusbarClientError) -> None:
        """Close the other link, too: one of them has ended."""
        if self.error is not None:
            return
        self.error = error
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self.close()

    def close(self) -> None:
        if self.error is None:
            self.error = ConnectionLost(f"The links to '{self.address}' were closed by their owner.")
        if self._is_open and not self.connection.is_over:
            self.connection.detach(self._requests.link)
            self.connection.detach(self._replies.link)


class _Requests(LinkEnd):
    def __init__(self, node: RequestNode) -> None:
        self._node = node

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        if outcome is None or outcome.code != REJECTED:
            return  # accepted: the reply follows
        error = outcome.error
        for tag in tags:
            problem = error_of(error.condition, error.description) if error else BusbarClientError("refused")
            self._node.refused(tag.decode(), problem)

    def ended(self, error: BusbarClientError) -> None:
        self._node.ended(error)


class _Replies(LinkEnd):
    def __init__(self, node: RequestNode) -> None:
        self._node = node

    def arrived(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                reply = decode_message(delivery.payload)
            except MalformedMessage:
                continue  # its request times out
            self._node.answered(reply.correlation_id, reply)
        if self.link.credit <= MOST_REQUESTS:
            self.link.grant(2 * MOST_REQUESTS)

    def ended(self, error: BusbarClientError) -> None:
        self._node.ended(error)
