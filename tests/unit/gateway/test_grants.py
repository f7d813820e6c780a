"""What a connection's tokens allow, and for how long."""

from __future__ import annotations

from typing import cast

import pytest

from busbar.gateway.authority import Authority, Grant
from busbar.gateway.gateway_quota import GatewayQuota
from busbar.gateway.grants import MAX_GRANTS, Grants
from busbar.gateway.link_registry import LinkRegistry
from busbar.gateway.services import GatewayServices
from busbar.model.api import BrokerApi, EntityView
from busbar.model.entities import AuthorizationRule, Right
from busbar.model.errors import QuotaExceeded
from busbar.model.limits import Limits
from busbar.model.sas import LISTEN, SEND

NOW = 1_000_000
GRACE = 500


class Holder:
    """A connection that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def entity_changed(self, path: str, view: EntityView | None) -> None:
        self.told.append(path)

    def session_holder(self, path: str, session: str) -> str:
        return ""


class World:
    """Grants of one holder, and the rules of the entities they may follow from."""

    def __init__(self) -> None:
        self.rules: dict[str, tuple[AuthorizationRule, ...]] = {}
        self.attached = LinkRegistry(GatewayQuota(Limits()))
        self.holder = Holder()
        authority = Authority([], lambda path: self.rules.get(path.lower(), ()))
        nobody = cast(BrokerApi, None)
        service = GatewayServices(nobody, authority, Limits(token_grace=GRACE), self.attached, "", "")
        self.grants = Grants(service, self.holder)

    def rule(self, entity: str, right: Right, key: str = "k") -> None:
        self.rules[entity] = (AuthorizationRule("r", frozenset((right,)), key, "second"),)


@pytest.fixture
def world() -> World:
    return World()


def grant(path: str, *, expires: int = 0, right: str = SEND, owner: str = "") -> Grant:
    return Grant(path, frozenset((right,)), expires, owner, "r", "k")


def test_a_grant_counts_until_its_grace_is_over(world: World) -> None:
    world.grants.add(grant("q", expires=NOW))
    assert world.grants.ends() == [NOW + GRACE]
    assert world.grants.may(SEND, "q", NOW + GRACE - 1) and not world.grants.may(LISTEN, "q", NOW)
    assert not world.grants.may(SEND, "q", NOW + GRACE)
    assert not world.grants.expire(NOW + GRACE - 1) and world.grants
    assert world.grants.expire(NOW + GRACE) and not world.grants


def test_a_new_token_takes_the_place_of_the_old(world: World) -> None:
    world.grants.add(grant("q", expires=NOW))
    world.grants.add(grant("q", expires=2 * NOW))
    world.grants.add(grant("q", right=LISTEN))
    assert world.grants.ends() == [2 * NOW + GRACE]
    assert world.grants.may(SEND, "q/$management", NOW) and world.grants.may(LISTEN, "q", 3 * NOW)


def test_there_is_a_limit_and_renewing_is_always_possible(world: World) -> None:
    for number in range(MAX_GRANTS):
        world.grants.add(grant(f"q{number}", expires=NOW))
    with pytest.raises(QuotaExceeded, match="1000 tokens"):
        world.grants.add(grant("one-more", expires=NOW))
    world.grants.add(grant("q5", expires=2 * NOW))
    assert world.grants.may(SEND, "q5", NOW + GRACE)


def test_a_change_of_a_rule_changes_what_it_granted(world: World) -> None:
    world.rule("orders", Right.SEND)
    world.grants.add(grant("orders", owner="orders"))
    world.grants.add(grant("", right=LISTEN))
    world.attached.changed("Orders", None)
    assert world.holder.told == ["Orders"]
    world.rule("orders", Right.LISTEN)
    assert world.grants.renew("ORDERS")
    assert not world.grants.may(SEND, "orders", NOW), "the rule has another right now"
    world.rule("orders", Right.LISTEN, "another key")
    assert world.grants.renew("orders")
    world.attached.changed("orders", None)
    assert world.holder.told == ["Orders"], "nothing follows from its rules any more"
    assert not world.grants.renew("orders") and world.grants.may(LISTEN, "orders", NOW)


def test_who_leaves_is_told_nothing_more(world: World) -> None:
    world.rule("orders", Right.SEND)
    world.grants.add(grant("orders", owner="orders"))
    world.grants.close()
    world.attached.changed("orders", None)
    assert not world.holder.told and not world.grants
