"""One session: its windows, its delivery-ids, and the links on it.

SESSION_TRANSITIONS (states.py) has the next state for each state and input. While a session is ENDING, all frames but the
remote's end are ignored.

Delivery-ids are given out by the session, over all its sending links, one after the other; transfer-ids
count frames, for the windows. Our incoming window is renewed by every flow we write, and by one of its
own when half of it is used. Deliveries that meet a closed window wait in their links; the links wait in
`backlog`, first come first served, so that the frames of two deliveries never mix.

A frame for a handle that is not attached ends the session (amqp:session:unattached-handle). So does an attach on a
handle in use (handle-in-use). A handle beyond handle-max ends the connection (framing-error, 2.7.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64, u8

from busbar.amqp.attaching import read_attach
from busbar.amqp.codec import skip_value
from busbar.amqp.credit import MASK, serial_distance, window_left
from busbar.amqp.deliveries import SentDelivery
from busbar.amqp.errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    AmqpError,
    ProtocolError,
)
from busbar.amqp.events import (
    Disposed,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    SessionEnded,
    SettledDisposed,
)
from busbar.amqp.frames import (
    binary_at,
    bool_at,
    list_at,
    uint_at,
    uint_size,
    write_disposition,
    write_u32,
    write_uint,
)
from busbar.amqp.link import MIXED_MODE, Link
from busbar.amqp.outcomes import RECEIVED, Outcome, StateReader, error_of, rejected_state
from busbar.amqp.performatives import Fields, Terminus, end_body, raw_field
from busbar.amqp.ranges import compacted, known_ids, take
from busbar.amqp.states import (
    ATTACHED,
    ATTACHING,
    BEGINNING,
    BEGUN,
    CONNECTION_END,
    DETACHING,
    ENDING,
    OUR_END,
    REMOTE_BEGIN,
    REMOTE_END,
    SESSION_TRANSITIONS,
)

if TYPE_CHECKING:
    from busbar.amqp.connection import Connection
    from busbar.amqp.output_buffer import OutputBuffer

FIRST_TRANSFER_ID: Final = 1
LONGEST_NAME: Final = 1024


@final
class Session:
    def __init__(self, connection: Connection, wire: OutputBuffer, channel: i64) -> None:
        config = connection.config
        self.connection = connection
        self._wire = wire
        self.channel = channel  # ours
        self.remote_channel: i64 = -1
        self.state: i64 = BEGINNING
        self.links: dict[int, Link] = {}  # by the remote's handle
        self.user: object = None
        self.next_delivery_id: i64 = 0
        self.next_outgoing: i64 = FIRST_TRANSFER_ID
        self.remote_window: i64 = 0
        self.next_incoming: i64 = 0
        self._window: i64 = config.incoming_window
        self._outgoing_window: i64 = config.outgoing_window
        self._window_used: i64 = 0
        self._handle_max: i64 = config.handle_max
        self.remote_handle_max: i64 = MASK
        self.unsettled: dict[int, SentDelivery] = {}  # what we sent, by delivery-id
        self.order: list[int] = []  # the ids of those without a disposition, for ranges (ranges.py)
        self.awaiting: dict[int, Link] = {}  # what we disposed and the sender has still to settle
        self.backlog: list[Link] = []
        self._attaching: list[Link] = []  # our own attaches without an answer
        self._states = StateReader()

    @property
    def is_begun(self) -> bool:
        return self.state == BEGUN

    # ---- life ------------------------------------------------------------------------------------

    def _enter(self, event: i64) -> bool:
        """Enter the state that an input leads to. False if it has no effect."""
        state: i64 = SESSION_TRANSITIONS[self.state][event]
        if state == self.state:
            return False
        self.state = state
        return True

    def end(self, condition: str | None = None, text: str = "") -> None:
        if not self._enter(OUR_END):
            return
        self._wire.frame(
            self.channel, end_body(b"" if condition is None else self._wire.error(condition, text))
        )
        self._leave_links()

    def fail(self, condition: str, text: str) -> None:
        """End the session with an error, since the peer broke one of its rules."""
        self.end(condition, text)
        self._wire.events.append(SessionEnded(self, AmqpError(condition, text)))

    def on_connection_end(self) -> None:
        self._enter(CONNECTION_END)
        self._leave_links()

    def release(self) -> None:
        for link in self.links.values():
            link.user = None
        for link in self._attaching:
            link.user = None
        self.links = {}
        self._attaching = []
        self.user = None

    def _leave_links(self) -> None:
        self.unsettled = {}
        self.order = []
        self.awaiting = {}
        self.backlog = []
        for link in self.links.values():
            link.on_session_end()
        for link in self._attaching:
            link.on_session_end()

    def attach_sender(
        self,
        name: str,
        source: Terminus,
        target: Terminus,
        snd_settle_mode: int = MIXED_MODE,
        rcv_settle_mode: int = 0,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
        desired_capabilities: list[str] | None = None,
    ) -> Link:
        """Client: a link on which we send. LinkAttached, or LinkDetached for a refusal, answers it."""
        return self._attach(
            name,
            True,
            source,
            target,
            snd_settle_mode,
            rcv_settle_mode,
            properties,
            max_message_size,
            desired_capabilities,
        )

    def attach_receiver(
        self,
        name: str,
        source: Terminus,
        target: Terminus,
        snd_settle_mode: int = MIXED_MODE,
        rcv_settle_mode: int = 0,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
        desired_capabilities: list[str] | None = None,
    ) -> Link:
        """Client: a link on which we receive."""
        return self._attach(
            name,
            False,
            source,
            target,
            snd_settle_mode,
            rcv_settle_mode,
            properties,
            max_message_size,
            desired_capabilities,
        )

    def _attach(
        self,
        name: str,
        sending: bool,
        source: Terminus,
        target: Terminus,
        snd_settle_mode: i64,
        rcv_settle_mode: i64,
        properties: dict[object, object] | None,
        max_message_size: i64,
        desired_capabilities: list[str] | None,
    ) -> Link:
        link = Link(self, self._wire, name, self._free_handle(-1), sending)
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        if max_message_size > 0:
            link.max_message_size = max_message_size
        self._wire.links += 1
        if self.state >= ENDING:
            link.on_session_end()
            return link
        self._attaching.append(link)
        link.write_attach_request(source, target, properties, desired_capabilities)
        return link

    def _free_handle(self, wanted: i64) -> i64:
        """A handle of ours that no link uses: the remote's number when it is free, else the smallest."""
        used = {int(link.handle) for link in self._attaching}
        for link in self.links.values():
            if link.state <= ATTACHED:
                used.add(int(link.handle))
        if wanted >= 0 and int(wanted) not in used:
            return wanted
        handle: i64 = 0
        while int(handle) in used:
            handle += 1
        if handle > self.remote_handle_max:
            raise ValueError(f"the peer allows handles up to {self.remote_handle_max}; all are in use")
        return handle

    def forget(self, link: Link) -> None:
        """Drop what waits for or was sent on a link that is over."""
        if link in self.backlog:
            self.backlog.remove(link)
        if link.unsettled:
            for id in [id for id, sent in self.unsettled.items() if sent.link is link]:
                del self.unsettled[id]
            for id in [id for id, other in self.awaiting.items() if other is link]:
                del self.awaiting[id]

    # ---- windows ---------------------------------------------------------------------------------

    def sent_frames(self, count: i64) -> None:
        self.remote_window -= count
        self.next_outgoing = (self.next_outgoing + count) & MASK
        self.order = compacted(self.order, self.unsettled)

    def add_backlog(self, link: Link) -> None:
        if link not in self.backlog:
            self.backlog.append(link)

    def flush(self) -> None:
        """Send what waited for the window."""
        backlog = self.backlog
        while backlog and self.remote_window > 0:
            if not backlog[0].push():
                return
            backlog.pop(0)

    def write_flow(self, link: Link | None) -> None:
        """A flow with a fresh window, for the session or one of its links."""
        self._window_used = 0
        out = self._wire.out
        sizes: i64 = uint_size(self.next_incoming) + uint_size(self._window)
        sizes += uint_size(self.next_outgoing) + uint_size(self._outgoing_window)
        count: i64 = 7
        credit: i64 = 0
        available: i64 = 0
        if link is None:
            sizes += 3
        else:
            credit = link.credit
            if link.sending:
                available = link.queued
                credit += available
            sizes += uint_size(link.handle) + uint_size(link.delivery_count) + uint_size(credit)
            if link.sending or link.drain:
                count = 9
                sizes += uint_size(available) + 1
        write_u32(out, 14 + sizes)
        write_u32(out, 0x02000000 | self.channel)
        write_u32(out, 0x005313C0)
        out.append(u8(sizes + 1))
        out.append(u8(count))
        write_uint(out, self.next_incoming)
        write_uint(out, self._window)
        write_uint(out, self.next_outgoing)
        write_uint(out, self._outgoing_window)
        if link is None:
            out.write(b"\x40\x40\x40")  # older Python clients read these fields without looking
            return
        write_uint(out, link.handle)
        write_uint(out, link.delivery_count)
        write_uint(out, credit)
        if count == 9:
            write_uint(out, available)
            out.append(0x41 if link.drain else 0x42)

    # ---- input -----------------------------------------------------------------------------------

    def on_begin(self, fields: Fields) -> None:
        self.next_incoming = fields.uint(1, "next-outgoing-id", MASK)
        self.remote_window = fields.uint(2, "incoming-window", MASK)
        fields.uint(3, "outgoing-window", MASK)
        self.remote_handle_max = fields.uint_or(4, "handle-max", MASK, MASK)
        self._enter(REMOTE_BEGIN)

    def on_end(self) -> bool:
        """The remote ended the session. True when we had not ended it: then it is answered."""
        is_news = self.state != ENDING
        if not self._enter(REMOTE_END):
            return False
        if is_news:
            self._wire.frame(self.channel, end_body(b""))
            self._leave_links()
        return is_news

    def _link(self, handle: i64, what: str) -> Link | None:
        """The link of an incoming frame; None when the frame is to be ignored."""
        link = self.links.get(handle)
        if link is None:
            self.fail(UNATTACHED_HANDLE, f"{what} names handle {handle}, to which no link is attached")
        return link

    def on_attach(self, buf: bytes, pos: i64, end: i64, max_links: i64) -> None:
        fields = Fields("attach", buf, pos, end)
        name = fields.text(0, "name")
        if len(name) > LONGEST_NAME:
            raise ProtocolError(
                INVALID_FIELD, f"attach.name has {len(name)} characters; {LONGEST_NAME} are allowed"
            )
        handle = fields.uint(1, "handle", MASK)
        if handle > self._handle_max:
            raise ProtocolError(FRAMING_ERROR, f"attach.handle is {handle}; handle-max is {self._handle_max}")
        sending = fields.flag(2, "role")
        used = self.links.get(handle)
        if used is not None and used.state != DETACHING:
            self.fail(HANDLE_IN_USE, f"handle {handle} is in use by link {used.name!r:.80}")
            return
        if used is None:
            self._wire.handles += 1
            if self._wire.handles > 2 * max_links:
                text = f"{self._wire.handles} handles are in use, refused links included; detach them"
                raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, text)
        link = self._answered(name, sending)
        if link is None:
            own = self._free_handle(handle) if self._attaching or not self._wire.server else handle
            link = Link(self, self._wire, name, own, sending)
        link.remote_handle = handle
        read_attach(link, fields, raw_field(buf, pos, end, 5), raw_field(buf, pos, end, 6))
        self.links[handle] = link
        if link.on_attach():
            self._wire.events.append(LinkAttached(link))
        elif link.state == ATTACHING:
            self._admit(link, max_links)

    def _admit(self, link: Link, max_links: i64) -> None:
        """Count a link that the remote attached, and leave it to the gateway unless there are too many."""
        self._wire.links += 1
        if self._wire.links > max_links:
            link.refuse(
                RESOURCE_LIMIT_EXCEEDED, f"{max_links} links are open on this connection; no more are allowed"
            )
            return
        self._wire.events.append(LinkAttaching(link))

    def _answered(self, name: str, sending: bool) -> Link | None:
        """Our own attach that the remote's one answers."""
        attaching = self._attaching
        i: i64 = 0
        while i < len(attaching):
            link = attaching[i]
            if link.name == name and link.sending == sending:
                attaching.pop(i)
                return link
            i += 1
        return None

    def on_detach(self, fields: Fields) -> None:
        handle = fields.uint(0, "handle", MASK)
        closed = fields.flag_or(1, "closed", False)
        error = error_of(fields.any(2))
        link = self._link(handle, "detach")
        if link is None:
            return
        del self.links[handle]
        self._wire.handles -= 1
        if link.on_detach(closed) or not self._wire.server:
            self._wire.events.append(LinkDetached(link, error, closed))

    def _drop(self, link: Link, condition: str, text: str) -> None:
        """Detach the link with an error, since the peer broke one of its rules."""
        link.detach(condition, text)
        self._wire.events.append(LinkDetached(link, AmqpError(condition, text), True))

    def on_flow(self, buf: bytes, pos: i64, end: i64) -> None:
        count, at, stop = list_at(buf, pos, end)
        if count < 4:
            raise ProtocolError(
                INVALID_FIELD, f"flow has {count} fields; the first four of the session are needed"
            )
        next_incoming, at = uint_at(buf, at, stop)
        window, at = uint_at(buf, at, stop)
        next_outgoing, at = uint_at(buf, at, stop)
        outgoing_window, at = uint_at(buf, at, stop)
        if window < 0 or next_outgoing < 0 or outgoing_window < 0:
            raise ProtocolError(
                INVALID_FIELD, "flow needs incoming-window, next-outgoing-id and outgoing-window"
            )
        handle: i64 = -1
        delivery_count: i64 = -1
        credit: i64 = -1
        drain: i64 = 0
        echo: i64 = 0
        if count > 4:
            handle, at = uint_at(buf, at, stop)
        if count > 5:
            delivery_count, at = uint_at(buf, at, stop)
        if count > 6:
            credit, at = uint_at(buf, at, stop)
        if count > 7:
            _available, at = uint_at(buf, at, stop)
        if count > 8:
            drain, at = bool_at(buf, at, stop)
        if count > 9:
            echo, at = bool_at(buf, at, stop)
        self.remote_window = window_left(
            next_incoming if next_incoming >= 0 else FIRST_TRANSFER_ID, window, self.next_outgoing
        )
        link: Link | None = None
        if handle >= 0:
            link = self._link(handle, "flow")
            if link is None:
                return
            link.on_flow(delivery_count, credit, drain == 1)
        self.flush()
        if echo == 1:
            self.write_flow(link if link is not None and link.state == ATTACHED else None)

    def on_transfer(self, buf: bytes, pos: i64, end: i64) -> None:
        count, at, stop = list_at(buf, pos, end)
        handle: i64 = -1
        id: i64 = -1
        tag = b""
        format: i64 = -1
        settled: i64 = 0
        more: i64 = 0
        aborted: i64 = 0
        txn: bytes | None = None
        resumed = False
        if count > 0:
            handle, at = uint_at(buf, at, stop)
        if count > 1:
            id, at = uint_at(buf, at, stop)
        if count > 2:
            start, at = binary_at(buf, at, stop)
            if start >= 0:
                tag = buf[start:at]
        if count > 3:
            format, at = uint_at(buf, at, stop)
        if count > 4:
            settled, at = bool_at(buf, at, stop)
        if count > 5:
            more, at = bool_at(buf, at, stop)
        if count > 6:
            at = skip_value(buf, at, stop)  # rcv-settle-mode
        if count > 7:
            after: i64 = skip_value(buf, at, stop)
            state = self._states.state_at(buf, at, stop)
            if state is not None:
                txn = state.txn
            at = after
        if count > 8:
            resume, at = bool_at(buf, at, stop)
            resumed = resume == 1
        if count > 9:
            aborted, at = bool_at(buf, at, stop)
        if handle < 0:
            raise ProtocolError(INVALID_FIELD, "transfer.handle is missing")
        link = self._receiving_link(handle)
        if link is None:
            return
        if resumed:
            self._drop(link, NOT_IMPLEMENTED, "deliveries are not resumed; send it again on a new link")
            return
        link.on_transfer(
            id, tag, format if format >= 0 else 0, settled == 1, more == 1, aborted == 1, txn, buf, stop, end
        )

    def _receiving_link(self, handle: i64) -> Link | None:
        """The link of a transfer, which is counted for the window; None when the transfer is to be ignored."""
        link = self._link(handle, "transfer")
        if link is None:
            return None
        self.next_incoming = (self.next_incoming + 1) & MASK
        self._window_used += 1
        if self._window_used * 2 >= self._window:
            self.write_flow(None)
        if link.state > ATTACHED:
            return None  # it was on its way when we detached
        if link.sending:
            raise ProtocolError(
                INVALID_FIELD, f"transfer.handle {handle} is a link on which the peer receives"
            )
        return link

    def on_disposition(self, buf: bytes, pos: i64, end: i64) -> None:
        count, at, stop = list_at(buf, pos, end)
        if count < 2:
            raise ProtocolError(INVALID_FIELD, f"disposition has {count} fields; role and first are needed")
        role, at = bool_at(buf, at, stop)
        first, at = uint_at(buf, at, stop)
        last: i64 = -1
        settled: i64 = 0
        outcome: Outcome | None = None
        if count > 2:
            last, at = uint_at(buf, at, stop)
        if count > 3:
            settled, at = bool_at(buf, at, stop)
        if count > 4:
            if at >= stop:
                raise ProtocolError(INVALID_FIELD, "disposition.state is cut off")
            outcome = self._states.state_at(buf, at, stop)
        if role < 0 or first < 0:
            raise ProtocolError(INVALID_FIELD, "disposition.role and disposition.first are needed")
        if last < 0:
            last = first
        if role == 1:
            self._dispose_sent(first, last, settled == 1, outcome)
        else:
            self._dispose_awaited(first, last, settled == 1, outcome)

    def _dispose_sent(self, first: i64, last: i64, settled: bool, outcome: Outcome | None) -> None:
        """Apply the receiver's disposition of what we sent. The first one of a delivery holds until we have settled it."""
        unsettled = self.unsettled
        if not self._wire.server:
            # The broker may send two dispositions: that it took the delivery, and that it is settled.
            ids = known_ids(first, last, unsettled)
        elif outcome is not None and outcome.code == RECEIVED and not settled:
            return  # a progress report
        elif first == last:
            ids = [first]
        else:
            ids = take(self.order, first, last)
        found = False
        for id in ids:
            sent = unsettled.get(id)
            found = found or sent is not None
            if sent is None or (sent.disposed and self._wire.server):
                continue
            sent.disposed = True
            if settled:
                del unsettled[id]
                sent.link.unsettled -= 1
            sent.link.on_disposed(id, sent.tag, settled, outcome)
        if not (found or settled) and outcome is not None and outcome.txn is not None and self._wire.server:
            known = [id for id in known_ids(first, last, unsettled) if id in unsettled]
            if not known and serial_distance(first, last) >= 0:
                self._wire.events.append(SettledDisposed(self, first, last, outcome.txn))

    def deny_settled(self, first: i64, last: i64, condition: str, text: str) -> None:
        """Answer a disposition about deliveries that are settled already: it changes nothing, and this is why."""
        if self.state != BEGUN:
            return
        state = rejected_state(AmqpError(condition, text), self._wire.text_limit())
        write_disposition(self._wire.out, self.channel, False, first, last, True, state)

    def _dispose_awaited(self, first: i64, last: i64, settled: bool, outcome: Outcome | None) -> None:
        """Apply the sender's disposition of what we disposed without settling."""
        awaiting = self.awaiting
        if not settled or not awaiting:
            return
        groups: list[Disposed] = []
        for id in known_ids(first, last, awaiting):
            link = awaiting.pop(id, None)
            if link is None:
                continue
            link.unsettled -= 1
            for group in groups:
                if group.link is link:
                    group.ids.append(id)
                    break
            else:
                groups.append(Disposed(link, [id], [], settled, outcome))
        self._wire.events.extend(groups)
