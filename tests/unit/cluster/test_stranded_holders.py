"""The channel to a gateway breaks while a client of it holds a session here: nobody else gets the session until it is
certain that the client has left it."""

from __future__ import annotations

import msgspec

from busbar.broker.dispatcher import FragmentRoutes
from busbar.catalogue.local_broker import LocalBroker
from busbar.cluster import protocol
from busbar.cluster.codec import commands_codec, effects_codec
from busbar.cluster.peer_server import PeerServer
from busbar.model.commands import AcceptSession, AwaitSession, Command, Demand, Leave, Send
from busbar.model.effects import Effect, Refused, Sent, SessionAccepted, SessionOffered
from busbar.model.entities import QueueDescription
from busbar.model.errors import SessionCannotBeLocked
from busbar.model.message import ACTIVE, Draft
from harness.waiting import until
from tests.conformance.gateways import Gateway
from tests.conformance.port_process import fragments
from tests.unit.cluster.test_departed_clients import connected
from tests.unit.cluster.test_remote_store import Peer


class FarGateway(Peer):
    """The gateway of another broker process."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Effect] = []

    def handle_frame(self, frame: protocol.StoreFrame) -> None:
        if isinstance(frame, protocol.EffectsFrame):
            self.heard += effects_codec.decode(frame.effects)

    def submit(self, *commands: Command) -> None:
        self.write(protocol.CommandsFrame("port", msgspec.Raw(commands_codec.encode([*commands]))))

    async def accept(self, fragment: int, request: int, session: str) -> None:
        self.submit(AcceptSession(fragment, 5, request, 1, session))
        await until(lambda: any(isinstance(effect, SessionAccepted) for effect in self.heard))


async def serve(port: LocalBroker, fragment: int) -> tuple[PeerServer, FarGateway]:
    assert isinstance(port.routes, FragmentRoutes)
    host = port.routes.sink_of(fragment)
    assert host is not None
    served, far = PeerServer(port, lambda: [host], lambda _: None), FarGateway()
    await connected(served, far)
    return served, far


async def test_a_holder_stays_until_its_gateway_says_that_it_has_left() -> None:
    async with fragments() as port:
        (fragment,) = (await port.create("s", QueueDescription(requires_session=True))).fragments
        plain = (await port.entity("orders")).fragments[0]
        served, far = await serve(port, fragment)
        await far.accept(fragment, 1, "a")
        far.submit(Demand(fragment, 5, 1, ACTIVE, 100, False, False))
        far.submit(Demand(plain, 5, 2, ACTIVE, 100, False, False))
        far.abort()
        await until(lambda: served.is_lost)
        assert len(served.stranded) == 1

        here = Gateway(port)
        await here.send(plain, 3)
        here.want(plain, 10)
        await here.until(lambda: len(here.numbers()) == 3)  # plain consumers have left
        drafts = [Draft(b"m", "1", "a", None, 0, 0)]
        await here.ask(Sent, lambda request: Send(fragment, here.origin, request, drafts, True))
        refused = await here.ask(Refused, lambda request: accept(here, fragment, request))
        assert refused.condition == SessionCannotBeLocked.condition
        here.heard.clear()
        port.submit([AwaitSession(fragment, here.origin, 99)])

        served.settle_store("port")
        await here.until(lambda: any(isinstance(effect, SessionOffered) for effect in here.heard))
        await here.ask(SessionAccepted, lambda request: accept(here, fragment, request))
        port.submit([Demand(fragment, here.origin, 7, ACTIVE, 10, False, False)])
        await here.until(lambda: bool(here.delivered()))
        (delivered,) = here.delivered()
        assert delivered.records[0].deliveries == 0
        assert not served.stranded


async def test_who_has_left_the_session_or_the_gateway_is_not_kept() -> None:
    async with fragments() as port:
        (fragment,) = (await port.create("s", QueueDescription(requires_session=True))).fragments
        served, far = await serve(port, fragment)
        await far.accept(fragment, 1, "a")
        far.submit(Leave(fragment, 5, 1))
        far.submit(AcceptSession(fragment, 6, 1, 1, "b"))
        await until(lambda: len(far.heard) == 2)
        protocol.PEER.remote(far).origin_closed(6)
        far.close()
        await until(lambda: served.is_lost)
        assert not served.stranded
        served, far = await serve(port, fragment)
        await far.accept(fragment, 1, "a")
        served.settle()  # it has ended, and the controller knows
        await until(lambda: served.is_lost)
        here = Gateway(port)
        await here.ask(SessionAccepted, lambda request: accept(here, fragment, request))


def accept(gateway: Gateway, fragment: int, request: int) -> AcceptSession:
    return AcceptSession(fragment, gateway.origin, request, 7, "a")
