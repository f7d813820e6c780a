"""Transactions frame by frame, as SDKs have them on the wire: sessions, coordinators and links that a test arranges itself.

    wire = WireSession(await connect(port))
    coordinator = await wire.coordinator()
    txn = await coordinator.declare()
    sender = await wire.sender("q")
    outcome = await sender.send(payload, txn)
    await coordinator.discharge(txn, fail=False)

Each call returns the outcome that the broker answered with, and leaves it to the test what that should be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import EllipsisType

from busbar.amqp.errors import AmqpError
from busbar.amqp.events import Delivery
from busbar.amqp.link import Link
from busbar.amqp.outcomes import DECLARED, REJECTED, Outcome, transactional_state
from busbar.amqp.performatives import Terminus
from busbar.amqp.session import Session
from busbar.amqp.transactions import declare_message, discharge_message
from busbar.amqp.types import Symbol, UInt
from busbar.message.decoded import DecodedMessage, decode_message, encode_message
from harness.amqp_driver import COMPLETE, SESSION_FILTER, ConnectionOver, LoadConnection, LoadLink

TIMEOUT = 10.0
DESTINATION = "com.microsoft:transfer-destination-address"


class Refused(Exception):
    """The broker rejected a request to its coordinator."""

    def __init__(self, outcome: Outcome | None) -> None:
        error = None if outcome is None else outcome.error
        super().__init__(f"{error!r}")
        self.condition = "" if error is None else error.condition
        self.text = "" if error is None else error.description


class WireLink(LoadLink):
    """A link on which deliveries wait for their outcomes."""

    link: Link

    def __init__(self, connection: LoadConnection) -> None:
        super().__init__(connection)
        self.deliveries: deque[Delivery] = deque()
        self._outcomes: dict[object, asyncio.Future[Outcome | None]] = {}
        self._sent = 0

    def credit_changed(self) -> None:
        self.wake()

    def arrived(self, deliveries: list[Delivery]) -> None:
        self.deliveries.extend(deliveries)
        self.wake()

    def disposed(self, ids: list[int], tags: list[bytes], outcome: Outcome | None) -> None:
        for key in tags or ids:
            waiting = self._outcomes.pop(key, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(outcome)

    def end(self, error: AmqpError | None) -> None:
        super().end(error)
        for waiting in self._outcomes.values():
            waiting.cancel()

    def expect(self, key: object) -> asyncio.Future[Outcome | None]:
        if self.over:
            raise ConnectionOver
        self._outcomes[key] = asyncio.get_running_loop().create_future()
        return self._outcomes[key]

    def write(
        self, payload: bytes, state: bytes = b"", settled: bool = False, format: int = 0
    ) -> asyncio.Future[Outcome | None]:
        """As `start`, but the frames go out with the next flush."""
        tag = self._sent.to_bytes(4, "big")
        self._sent += 1
        waiting = self.expect(tag)
        self.link.deliver([tag], [payload], settled, format, state)
        return waiting

    def start(
        self, payload: bytes, state: bytes = b"", settled: bool = False, format: int = 0
    ) -> asyncio.Future[Outcome | None]:
        """Send without waiting; the outcome follows, unless the delivery is settled."""
        waiting = self.write(payload, state, settled, format)
        self.connection.flush()
        return waiting

    async def post(
        self, payload: bytes, state: bytes = b"", settled: bool = False, format: int = 0
    ) -> Outcome | None:
        async with asyncio.timeout(TIMEOUT):
            await self.until(lambda: self.link.credit > 0)
            waiting = self.start(payload, state, settled, format)
            return None if settled else await waiting

    async def detach(self) -> None:
        self.link.detach()
        self.connection.flush()


class Coordinator(WireLink):
    async def declare(self) -> bytes:
        """The id of a new transaction. Raises Refused."""
        outcome = await self.post(declare_message())
        if outcome is None or outcome.code != DECLARED or not outcome.txn:
            raise Refused(outcome)
        return outcome.txn

    async def discharge(self, txn: bytes, fail: bool = False) -> Outcome | None:
        return await self.post(discharge_message(txn, fail))


class WireSender(WireLink):
    async def send(
        self, payload: bytes, txn: bytes | None = None, settled: bool = False, format: int = 0
    ) -> Outcome | None:
        return await self.post(
            payload, b"" if txn is None else transactional_state(txn, b""), settled, format
        )


class WireReceiver(WireLink):
    async def take(self) -> Delivery:
        """The next message."""
        async with asyncio.timeout(TIMEOUT):
            await self.until(lambda: bool(self.deliveries))
        return self.deliveries.popleft()

    async def settle(
        self, delivery: Delivery, txn: bytes | None = None, state: bytes = COMPLETE, settled: bool = False
    ) -> Outcome | None:
        """Settle a delivery. If it is `settled` by the client, there is no answer."""
        waiting = self.expect(delivery.id)
        named = state if txn is None else transactional_state(txn, state)
        self.link.dispose([delivery.id], named, settled)
        self.connection.flush()
        if settled:
            return None
        async with asyncio.timeout(TIMEOUT):
            return await waiting


class WireRequests:
    """A management node; requests are sent settled, as .NET does."""

    def __init__(self, asking: WireSender, answering: WireReceiver) -> None:
        self._asking = asking
        self._answering = answering
        self._asked = 0

    async def ask(
        self, operation: str, body: dict[str, object], txn: bytes | None = None
    ) -> tuple[int, str, dict[str, object]]:
        """The status, the error condition and the body of the reply."""
        self._asked += 1
        request = DecodedMessage(body, None, {"operation": f"com.microsoft:{operation}"})
        request.message_id = f"request-{self._asked}"
        await self._asking.send(encode_message(request), txn, settled=True)
        reply = decode_message((await self._answering.take()).payload)
        properties = reply.application_properties
        assert reply.correlation_id == request.message_id and isinstance(reply.value, dict)
        condition = properties.get("errorCondition")
        return int(str(properties["statusCode"])), "" if condition is None else str(condition), reply.value


class WireSession:
    """An AMQP session of a connection: the first one, or another if `new`."""

    def __init__(self, connection: LoadConnection, new: bool = False) -> None:
        self.connection = connection
        self.session: Session = connection.begin() if new else connection.session
        self._links = 0

    def _name(self, what: str) -> str:
        self._links += 1
        return f"{what}-{id(self):x}-{self._links}"

    def start_coordinator(self) -> Coordinator:
        """Attach a coordinator without waiting for the answer."""
        coordinator = Coordinator(self.connection)
        name = self._name("coordinator")
        capabilities = ["amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn"]
        target = Terminus(None, coordinator=True, capabilities=capabilities)
        coordinator.link = self.session.attach_sender(name, Terminus(name), target)
        coordinator.link.user = coordinator
        return coordinator

    async def coordinator(self) -> Coordinator:
        coordinator = self.start_coordinator()
        await self.connection.attached(coordinator, coordinator.link)
        return coordinator

    async def sender(self, address: str, destination: str | None = None) -> WireSender:
        """A sender; with a `destination` it sends there, via the entity of its address."""
        sender = WireSender(self.connection)
        name = self._name(address)
        properties: dict[object, object] | None = None
        if destination is not None:
            properties = {Symbol(DESTINATION): destination}
        sender.link = self.session.attach_sender(name, Terminus(name), Terminus(address), 0, 0, properties)
        await self.connection.attached(sender, sender.link)
        return sender

    async def receiver(
        self,
        address: str,
        credit: int = 10,
        *,
        delete: bool = False,
        session: str | EllipsisType | None = ...,
    ) -> WireReceiver:
        receiver = WireReceiver(self.connection)
        name = self._name(address)
        source = Terminus(address) if session is ... else Terminus(address, {SESSION_FILTER: session})
        wait: dict[object, object] = {Symbol("com.microsoft:timeout"): UInt(5_000)}
        receiver.link = self.session.attach_receiver(
            name, source, Terminus(name), 1 if delete else 0, 0 if delete else 1, wait
        )
        await self.connection.attached(receiver, receiver.link)
        if credit:
            receiver.link.grant(credit)
            self.connection.flush()
        return receiver

    async def management(self, entity: str) -> WireRequests:
        node = f"{entity}/$management"
        asking = await self.sender(node)
        return WireRequests(asking, await self.receiver(node, 100, delete=True))

    def end(self) -> None:
        self.session.end()
        self.connection.flush()


def code_and_txn(outcome: Outcome | None) -> tuple[int, bytes | None]:
    """The descriptor of an outcome, and the transaction it names."""
    assert outcome is not None
    return int(outcome.code), outcome.txn


def condition(outcome: Outcome | None) -> str:
    """The condition of a rejection."""
    assert outcome is not None and outcome.code == REJECTED and outcome.error is not None, outcome
    return outcome.error.condition


def text(outcome: Outcome | None) -> str:
    """The description of a rejection."""
    assert outcome is not None and outcome.error is not None
    return outcome.error.description
