"""One link: its life, the deliveries that come in on it, and those that go out.

LINK_TRANSITIONS (states.py) has the next state for each state and input. A remote detach is answered once, with the same
`closed`, and never when our own detach is already out (rhea tears the connection down otherwise). An attach is answered
before the link is detached. Calls that send, grant or settle do nothing on a link that is not ATTACHED.

Receiving: deliveries beyond the granted credit are taken (Python assumes credit), also before the link is
accepted: the gateway keeps or refuses them. A delivery over several frames is collected up to
max-message-size. Beyond it the bytes are discarded and the delivery is reported as oversized.

Sending: a delivery goes out when the link has credit and the session window is open, else it waits here in
order (`queued`). It counts against `credit` as soon as `deliver` is called. Ids are given when the first
frame goes out. A flow may come before the link is accepted: read `credit` after accept().
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from busbar.amqp.credit import MASK, sendable
from busbar.amqp.deliveries import DeliveryBatch, PartialDelivery, QueuedDelivery, SentDelivery
from busbar.amqp.errors import INVALID_FIELD, AmqpError, ProtocolError
from busbar.amqp.events import Arrived, CreditChanged, Delivery, Disposed
from busbar.amqp.frames import (
    TRANSFER_OVERHEAD,
    write_continuation,
    write_dispositions,
    write_payload,
    write_transfer_head,
)
from busbar.amqp.outcomes import ACCEPTED, Outcome, declared_state, empty_state, rejected_state
from busbar.amqp.outcomes import transactional_state as in_transaction
from busbar.amqp.performatives import SOURCE, TARGET, Terminus, attach_body, detach_body, with_filter
from busbar.amqp.states import (
    ACCEPT,
    ATTACH_SENT,
    ATTACHED,
    ATTACHING,
    DETACHING,
    LINK_TRANSITIONS,
    OUR_DETACH,
    REFUSE,
    REMOTE_ATTACH,
    REMOTE_DETACH,
    SESSION_END,
)

if TYPE_CHECKING:
    from busbar.amqp.output_buffer import OutputBuffer
    from busbar.amqp.session import Session

UNSETTLED_MODE: Final = 0
SETTLED_MODE: Final = 1
MIXED_MODE: Final = 2
FIRST_MODE: Final = 0
SECOND_MODE: Final = 1

_ACCEPTED_STATE: Final = empty_state(ACCEPTED)


@final
class Link:
    def __init__(self, session: Session, wire: OutputBuffer, name: str, handle: i64, sending: bool) -> None:
        self.session = session
        self._wire = wire
        self.name = name
        self.handle = handle  # ours
        self.remote_handle: i64 = -1
        self.sending = sending
        self.state: i64 = ATTACHING
        self.source: Terminus | None = None
        self.target: Terminus | None = None
        self.snd_settle_mode: i64 = MIXED_MODE
        self.rcv_settle_mode: i64 = FIRST_MODE
        self.properties: dict[object, object] = {}
        self.offered_capabilities: list[str] | None = None  # of the remote's attach, as is the next
        self.desired_capabilities: list[str] | None = None
        self.remote_max_message_size: i64 = 0
        self.max_message_size: i64 = wire.max_message_size
        self.credit: i64 = 0
        self.delivery_count: i64 = 0
        self.uncounted: i64 = 0  # the part of it that was no delivery
        self.unsettled: i64 = 0
        self.drain = False
        self.is_coordinator = False
        self.user: object = None
        # Sending: what may still go out on the wire. `credit` is this without the deliveries that wait.
        self._sendable: i64 = 0
        self._waiting: list[QueuedDelivery] | None = None
        self._drain_due = False
        self._arriving: PartialDelivery | None = None
        self._arrived: Arrived | None = None
        self._disposed: Disposed | None = None
        self._credited: CreditChanged | None = None

    @property
    def is_attached(self) -> bool:
        return self.state == ATTACHED

    @property
    def queued(self) -> int:
        waiting = self._waiting
        return 0 if waiting is None else len(waiting)

    # ---- life ------------------------------------------------------------------------------------

    def _next(self, event: i64) -> i64:
        """The state that an input leads to; -1 if it has no effect."""
        state: i64 = LINK_TRANSITIONS[self.state][event]
        return -1 if state == self.state else state

    def accept(
        self,
        max_message_size: int,
        properties: dict[object, object] | None = None,
        filter: dict[object, object] | None = None,
        offered_capabilities: list[str] | None = None,
    ) -> None:
        """Answer the remote's attach: name, modes, source and target as received, or with another filter."""
        state = self._next(ACCEPT)
        if state < 0:
            return
        source = b"" if self.source is None else self.source.encoded(SOURCE)
        target = b"" if self.target is None else self.target.encoded(TARGET)
        if filter is not None and source:
            source = with_filter(source, filter)
        if max_message_size > 0:
            self.max_message_size = max_message_size
        self.state = state
        self._write_attach(source, target, max_message_size, properties, offered_capabilities)
        if self.sending and (self._sendable > 0 or self.drain):
            # A flow that came before the answer: its event may have been too early to be of use.
            self._credit_event(self.drain)

    def refuse(self, condition: str, text: str) -> None:
        """Answer the remote's attach with one that has no terminus, and detach."""
        state = self._next(REFUSE)
        if state < 0:
            return
        self._write_end(True, self._wire.error(condition, text))
        self._leave(state)
        # Some clients never answer a refusal: the link stays until their connection ends, and should weigh little.
        self.source = None
        self.target = None
        self.properties = {}

    def detach(self, condition: str | None = None, text: str = "") -> None:
        """Close the link, with an error or without."""
        state = self._next(OUR_DETACH)
        if state < 0:
            return
        self._write_end(True, b"" if condition is None else self._wire.error(condition, text))
        self._leave(state)

    def on_attach(self) -> bool:
        """The remote's attach has come. True when it answers ours."""
        state = self._next(REMOTE_ATTACH)
        if state < 0:
            return False  # it is the remote's own, or we detached before the answer came
        self.state = state
        return True

    def on_detach(self, closed: bool) -> bool:
        """The remote detached. True when the gateway has not got an event for the end of the link yet."""
        state = self._next(REMOTE_DETACH)
        if state < 0:
            return False
        is_news = self.state != DETACHING
        if is_news:
            self._write_end(closed, b"")
        self._leave(state)
        return is_news

    def shed(self) -> None:
        """Keep nothing of the remote's attach but addresses and, until they are answered, its source and target."""
        self.properties = {}
        self.offered_capabilities = None
        self.desired_capabilities = None
        if self.source is not None:
            self.source.shed(self.state > ATTACHING)
        if self.target is not None:
            self.target.shed(self.state > ATTACHING)

    def on_session_end(self) -> None:
        self._leave(LINK_TRANSITIONS[self.state][SESSION_END])

    def write_attach_request(
        self,
        source: Terminus,
        target: Terminus,
        properties: dict[object, object] | None,
        desired_capabilities: list[str] | None = None,
    ) -> None:
        self.state = ATTACH_SENT
        self._write_attach(
            source.encoded(SOURCE),
            target.encoded(TARGET),
            self.max_message_size,
            properties,
            None,
            desired_capabilities,
        )

    def _write_attach(
        self,
        source: bytes,
        target: bytes,
        max_message_size: i64,
        properties: dict[object, object] | None,
        offered_capabilities: list[str] | None = None,
        desired_capabilities: list[str] | None = None,
    ) -> None:
        self._wire.frame(
            self.session.channel,
            attach_body(
                self.name,
                self.handle,
                not self.sending,
                self.snd_settle_mode,
                self.rcv_settle_mode,
                source,
                target,
                max_message_size,
                properties,
                offered_capabilities,
                desired_capabilities,
            ),
        )

    def _write_end(self, closed: bool, error: bytes) -> None:
        """Write a detach, and before it an attach without terminus if the remote's one was not answered."""
        if self.state == ATTACHING:
            self._write_attach(b"", b"", 0, None)
        self._wire.frame(self.session.channel, detach_body(self.handle, closed, error))

    def _leave(self, state: i64) -> None:
        """Forget all that belongs to a link in use."""
        if self.state <= ATTACHED:
            self._wire.links -= 1
        self.state = state
        self.credit = 0
        self._sendable = 0
        self._waiting = None
        self._drain_due = False
        self._drop_arriving()
        self.session.forget(self)
        self.unsettled = 0

    # ---- receiving -------------------------------------------------------------------------------

    def grant(self, credit: int, drain: bool = False) -> None:
        """Set the link-credit and send it to the sender in a flow."""
        if self.state != ATTACHED:
            return
        self.credit = credit
        self.drain = drain
        self.session.write_flow(self)

    def accept_deliveries(self, ids: list[int]) -> None:
        self.dispose(ids, _ACCEPTED_STATE)

    def reject_delivery(
        self, id: int, condition: str, text: str, info: dict[object, object] | None = None
    ) -> None:
        """`info` is left out where the peer's frames are too small for it."""
        limit = self._wire.text_limit()
        state = rejected_state(AmqpError(condition, text, info), limit)
        if info is not None and len(state) > self._wire.peer_max_frame - 64:
            state = rejected_state(AmqpError(condition, text), limit)
        self.dispose([id], state)

    def declared(self, id: int, txn: bytes) -> None:
        """Coordinator link: the transaction asked for by delivery `id` has this name."""
        self.dispose([id], declared_state(txn))

    def accept_in_txn(self, ids: list[int], txn: bytes) -> None:
        self.dispose(ids, in_transaction(txn, _ACCEPTED_STATE))

    def dispose(self, ids: list[int], state: bytes, settled: bool = True) -> None:
        """Send the sender the state of its deliveries. If not `settled`, its answer comes as Disposed."""
        if self.state != ATTACHED:
            return
        write_dispositions(self._wire.out, self.session.channel, True, ids, settled, state)
        if not settled:
            awaiting = self.session.awaiting
            for number in ids:
                if number not in awaiting:
                    awaiting[number] = self
                    self.unsettled += 1

    def on_transfer(
        self,
        id: i64,
        tag: bytes,
        format: i64,
        settled: bool,
        more: bool,
        aborted: bool,
        txn: bytes | None,
        buf: bytes,
        start: i64,
        end: i64,
    ) -> None:
        arriving = self._arriving
        if arriving is None:
            if id < 0:
                raise ProtocolError(
                    INVALID_FIELD,
                    f"transfer.delivery-id is missing on the first frame of link {self.name!r:.80}",
                )
            self.delivery_count = (self.delivery_count + 1) & MASK
            if self.credit > 0:
                self.credit -= 1
            if aborted:
                return
            if not more:
                if end - start > self.max_message_size:
                    self._arrive(Delivery(id, tag, format, b"", settled, txn, True))
                else:
                    self._arrive(Delivery(id, tag, format, buf[start:end], settled, txn, False))
                return
            arriving = PartialDelivery(id, tag, format, settled, txn)
            self._arriving = arriving
        else:
            arriving.check_next(id)
            if aborted:
                self._drop_arriving()
                return
            if settled:
                arriving.settled = True  # the flag may come with any frame (2.7.5)
        arriving.gather(self._wire, self.max_message_size, buf, start, end)
        if not more:
            self._arriving = None
            self._arrive(arriving.finish(self._wire))

    def _drop_arriving(self) -> None:
        arriving = self._arriving
        if arriving is not None:
            arriving.release(self._wire)
            self._arriving = None

    def _arrive(self, delivery: Delivery) -> None:
        if self.is_coordinator:
            self._wire.close_events()  # a discharge stands behind what came before it, and before what follows
        arrived = self._arrived
        if arrived is None:
            arrived = Arrived(self, [delivery])
            self._arrived = arrived
            self._wire.events.append(arrived)
            self._wire.touched.append(self)
        else:
            arrived.deliveries.append(delivery)

    # ---- sending ---------------------------------------------------------------------------------

    def deliver(
        self,
        tags: list[bytes],
        payloads: list[bytes],
        settled: bool,
        format: i64 = 0,
        state: bytes = b"",
        contents: list[bytes] | None = None,
        skip: i64 = 0,
    ) -> None:
        """Send messages, each with its tag (at most 32 bytes). `state` is an encoded transactional-state. If there are
        contents, what is in them from `skip` on goes out behind the payloads.

        Keep within `credit`: what goes beyond it waits here, with its lock running, until the peer gives more.
        """
        if self.state != ATTACHED:
            return
        batch = DeliveryBatch(tags, payloads, settled, format, state, contents or [], skip)
        done: i64 = 0
        if self._waiting is None and not self.session.backlog:
            done = self._send_whole(batch)
        if done < len(tags):
            self._enqueue(batch, done)
        else:
            self._count_credit()

    def _send_whole(self, batch: DeliveryBatch) -> i64:
        """Send messages that fit into a frame each, as far as credit and window go. Returns how many were sent."""
        session = self.session
        out = self._wire.out
        channel = session.channel
        tags, payloads, contents, skip = batch.tags, batch.payloads, batch.contents, batch.skip
        settled, format, state = batch.settled, batch.format, batch.state
        room = self._wire.peer_max_frame - TRANSFER_OVERHEAD - len(state)
        able: i64 = min(i64(len(tags)), min(self._sendable, session.remote_window))
        id = session.next_delivery_id
        unsettled = session.unsettled
        order = session.order
        content = b""
        i: i64 = 0
        while i < able:
            tag = tags[i]
            if contents:
                content = contents[i]
            size = len(payloads[i]) + len(content) - skip
            if len(tag) + size > room:
                break
            write_transfer_head(out, channel, self.handle, id, tag, format, settled, False, state, size)
            write_payload(out, payloads[i], content, skip)
            if not settled:
                number: int = id
                unsettled[number] = SentDelivery(self, tag)
                order.append(number)
            id = (id + 1) & MASK
            i += 1
        session.next_delivery_id = id
        session.sent_frames(i)
        self._sendable -= i
        self.delivery_count = (self.delivery_count + i) & MASK
        if not settled:
            self.unsettled += i
        return i

    def _enqueue(self, batch: DeliveryBatch, start: i64) -> None:
        self._waiting = waiting = self._waiting or []
        waiting += [batch.queued(i) for i in range(start, len(batch.tags))]
        self.session.add_backlog(self)
        self.session.flush()
        self._count_credit()

    def push(self) -> bool:
        """Send what waits. False when the session window closed before all that has credit was out."""
        waiting = self._waiting
        if waiting is None:
            return True
        done: i64 = 0
        whole = True
        for item in waiting:
            if item.offset < 0 and self._sendable == 0:
                break
            if not self._push_one(item):
                whole = False
                break
            done += 1
        if done == len(waiting):
            self._waiting = None
        else:
            del waiting[:done]
        if self._drain_due and (self._waiting is None or self._sendable == 0):
            self._finish_drain()
        self._count_credit()
        return whole

    def _push_one(self, item: QueuedDelivery) -> bool:
        """Send the frames of a delivery that the window allows. True when the last one is out."""
        session = self.session
        wire = self._wire
        payload = item.payload
        size: i64 = len(payload)
        while session.remote_window > 0:
            room = wire.peer_max_frame - TRANSFER_OVERHEAD
            if item.offset < 0:
                room -= len(item.tag) + len(item.state)
                stop = size if size <= room else room
                id = session.next_delivery_id
                write_transfer_head(
                    wire.out,
                    session.channel,
                    self.handle,
                    id,
                    item.tag,
                    item.format,
                    item.settled,
                    stop < size,
                    item.state,
                    stop,
                )
                wire.payload(payload, 0, stop)
                session.next_delivery_id = (id + 1) & MASK
                self._sendable -= 1
                self.delivery_count = (self.delivery_count + 1) & MASK
                if not item.settled:
                    session.unsettled[id] = SentDelivery(self, item.tag)
                    session.order.append(id)
                    self.unsettled += 1
            else:
                stop = size if size - item.offset <= room else item.offset + room
                length = stop - item.offset
                write_continuation(wire.out, session.channel, self.handle, item.settled, stop < size, length)
                wire.payload(payload, item.offset, stop)
            item.offset = stop
            session.sent_frames(1)
            if stop == size:
                return True
        return False

    def drained(self) -> None:
        """Answer a drain: what was delivered so far goes out, the rest of the credit is given back."""
        if self.state != ATTACHED:
            return
        if self._waiting is not None and self._sendable > 0:
            self._drain_due = True
        else:
            self._finish_drain()

    def _finish_drain(self) -> None:
        self._drain_due = False
        self.uncounted += self._sendable
        self.delivery_count = (self.delivery_count + self._sendable) & MASK
        self._sendable = 0
        self.credit = 0
        self.drain = True
        self.session.write_flow(self)
        self.drain = False

    def confirm(self, ids: list[int], code: int) -> None:
        """Settle deliveries with the outcome their receiver asked for, without content."""
        self._settle(ids, empty_state(code))

    def deny(self, id: int, condition: str, text: str) -> None:
        """Settle a delivery as rejected: what its receiver asked for could not be done."""
        self._settle([id], rejected_state(AmqpError(condition, text), self._wire.text_limit()))

    def confirm_in_txn(self, ids: list[int], code: int, txn: bytes) -> None:
        self._settle(ids, in_transaction(txn, empty_state(code)))

    def _settle(self, ids: list[int], state: bytes) -> None:
        if self.state != ATTACHED:
            return
        unsettled = self.session.unsettled
        settled: list[int] = []
        for number in ids:
            sent = unsettled.get(number)
            if sent is not None and sent.link is self:
                del unsettled[number]
                settled.append(number)
        self.unsettled -= len(settled)
        write_dispositions(self._wire.out, self.session.channel, False, settled, True, state)

    def on_flow(self, receiver_count: i64, link_credit: i64, drain: bool) -> None:
        """A flow of the peer for this link."""
        if self.state > ATTACHED:
            return
        if not self.sending:
            # Senders send flows too (Python does). Only the answer to our own drain means something here.
            if self.drain and drain:
                if receiver_count >= 0:
                    self.uncounted += receiver_count - self.delivery_count
                    self.delivery_count = receiver_count
                self.credit = 0
                self.drain = False
                self._credit_event(True)
            return
        if receiver_count < 0:
            receiver_count = 0  # the receiver has not seen our attach, which starts to count at 0
        if link_credit >= 0:
            self._sendable = sendable(receiver_count, link_credit, self.delivery_count)
        self.drain = drain
        self._drain_due = False  # the gateway is asked again if the peer still drains
        self._count_credit()
        if self._waiting is not None and self._sendable > 0:
            self.session.add_backlog(self)
        self._credit_event(self.drain)

    def _count_credit(self) -> None:
        waiting = self._waiting
        if waiting is None:
            self.credit = self._sendable
            return
        # The first of them may have its credit already taken, when only some of its frames are out.
        begun: i64 = 1 if waiting[0].offset >= 0 else 0
        left = self._sendable - len(waiting) + begun
        self.credit = left if left > 0 else 0

    def _credit_event(self, drain: bool) -> None:
        credited = self._credited
        if credited is None:
            credited = CreditChanged(self, drain)
            self._credited = credited
            self._wire.events.append(credited)
            self._wire.touched.append(self)
        else:
            credited.drain = drain  # the last flow counts

    def on_disposed(self, id: int, tag: bytes, settled: bool, outcome: Outcome | None) -> None:
        """One of our deliveries was disposed by the peer."""
        disposed = self._disposed
        if disposed is not None and disposed.outcome is outcome and disposed.settled == settled:
            disposed.ids.append(id)
            disposed.tags.append(tag)
        else:
            disposed = Disposed(self, [id], [tag], settled, outcome)
            self._disposed = disposed
            self._wire.events.append(disposed)
            self._wire.touched.append(self)

    def close_events(self) -> None:
        """The events of a call went out: the next ones are new."""
        self._arrived = None
        self._disposed = None
        self._credited = None
