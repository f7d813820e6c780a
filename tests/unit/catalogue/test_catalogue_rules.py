"""What the catalogue admits, what it converts, what it deletes by itself, and who hears of it."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.model.api import EntityView
from busbar.model.commands import Peek
from busbar.model.entities import (
    AuthorizationRule,
    EntityKind,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
    TypedText,
)
from busbar.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    ServerBusy,
)
from busbar.model.limits import Limits, limits_of
from busbar.store.contract import StoreError
from busbar.store.sqlite.store import SqliteStore
from harness.memory_catalogue import CatalogueDisk
from harness.memory_store import Disk, Fault
from tests.unit.catalogue.test_catalogue import namespace

QUEUE = QueueDescription()


async def test_numbers_are_limited(tmp_path: Path) -> None:
    limits = Limits(max_entities=4, max_partitioned_entities=1, max_subscriptions=2, max_rules=2)
    async with namespace(tmp_path, limits) as here:
        create = here.catalogue.create
        await create("p", QueueDescription(enable_partitioning=True))
        with pytest.raises(QuotaExceeded, match="The namespace has 1 partitioned entities"):
            await create("p2", TopicDescription(enable_partitioning=True))
        await create("t", TopicDescription())
        for name in ("a", "b"):
            await create(f"t/Subscriptions/{name}", SubscriptionDescription())
        with pytest.raises(QuotaExceeded, match="'t' has 2 subscriptions"):
            await create("t/Subscriptions/c", SubscriptionDescription())
        await create("t/Subscriptions/a/Rules/r", RuleDescription())
        with pytest.raises(QuotaExceeded, match="'t/Subscriptions/a' has 2 rules"):
            await create("t/Subscriptions/a/Rules/r2", RuleDescription())
        await create("q1", QUEUE)
        await create("q2", QUEUE)
        with pytest.raises(QuotaExceeded, match="has 4 queues and topics"):
            await create("q3", QUEUE)
        await here.catalogue.delete("p")
        await create("p2", QueueDescription(enable_partitioning=True))
        assert len(await here.host.on_store(lambda store: store.definitions())) > 8


async def test_two_thousand_subscriptions(tmp_path: Path) -> None:
    """Each is an entry of its own: the last one costs no more than the first."""
    disk, home = Disk(), CatalogueDisk()
    async with namespace(tmp_path, disk=disk, catalogue_disk=home) as here:
        await here.catalogue.create("t", TopicDescription())
        await asyncio.gather(
            *(here.catalogue.create(f"t/Subscriptions/s{i}", SubscriptionDescription()) for i in range(2_000))
        )
        with pytest.raises(QuotaExceeded, match="2000 subscriptions"):
            await here.catalogue.create("t/Subscriptions/more", SubscriptionDescription())
        pages = [
            here.catalogue.page(EntityKind.SUBSCRIPTION, "T", skip, 100) for skip in range(0, 2_000, 100)
        ]
        assert len({view.path for page in pages for view in page}) == 2_000
        last = max(home.changes)
        await here.catalogue.delete("t")
        entries, fragments = 4_001, 2_001
        assert len(home.changes[last + 1]) == entries + fragments, "one write, with what is to be emptied"
        assert len(here.catalogue) == 0
    async with namespace(tmp_path, disk=disk, catalogue_disk=home) as here:
        assert len(here.catalogue) == 0


async def test_the_premium_tier_counts_no_entities(tmp_path: Path) -> None:
    async with namespace(tmp_path, replace(limits_of(Tier.PREMIUM), max_partitioned_entities=0)) as here:
        await here.catalogue.create("a", QUEUE)
        with pytest.raises(QuotaExceeded):
            await here.catalogue.create("p", QueueDescription(enable_partitioning=True))


async def test_what_is_forwarded_to_exists(tmp_path: Path) -> None:
    def to(target: str) -> Any:
        return QueueDescription(forward_to=target)

    async with namespace(tmp_path) as here:
        await here.catalogue.create("target", QUEUE)
        await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create("t/Subscriptions/s", SubscriptionDescription())
        await here.catalogue.create("q", to("Target"))
        await here.catalogue.update("q", to("t"))
        for bad, says in (
            ("nothing", "no queue or topic"),
            ("t/subscriptions/s", "no queue"),
        ):
            with pytest.raises(ArgumentError, match=says):
                await here.catalogue.update("q", to(bad))
        with pytest.raises(ArgumentError, match="no queue or topic"):
            await here.catalogue.create("q2", to("nothing"))
        with pytest.raises(ArgumentError, match="no queue or topic"):
            await here.catalogue.update("t/Subscriptions/s", SubscriptionDescription(forward_to="x"))


async def test_dead_letters_are_forwarded_to_what_exists(tmp_path: Path) -> None:
    queue = QueueDescription(forward_dead_lettered_messages_to="target")
    subscription = SubscriptionDescription(forward_dead_lettered_messages_to="target")
    async with namespace(tmp_path) as here:
        says = "ForwardDeadLetteredMessagesTo is 'target'; there is no queue or topic"
        with pytest.raises(ArgumentError, match=says):
            await here.catalogue.create("q", queue)
        await here.catalogue.create("target", QUEUE)
        await here.catalogue.create("there", QUEUE)
        await here.catalogue.create("t", TopicDescription())
        await here.catalogue.create("t/Subscriptions/there", SubscriptionDescription())
        for path, description in (("q", queue), ("t/Subscriptions/s", subscription)):
            assert (await here.catalogue.create(path, description)).description == description
        for path, description in (("there", queue), ("t/Subscriptions/there", subscription)):
            assert (await here.catalogue.update(path, description)).description == description
        assert [view.path for view in here.catalogue.entities()] == [
            "q",
            "t",
            "t/Subscriptions/s",
            "t/Subscriptions/there",
            "target",
            "there",
        ]


async def test_what_forwards_to_itself_and_what_forwards_sessions_is_taken(tmp_path: Path) -> None:
    """What comes of it is decided when messages flow."""
    async with namespace(tmp_path) as here:
        with pytest.raises(ArgumentError, match="no queue or topic"):
            await here.catalogue.create("q", QueueDescription(forward_to="q"))
        await here.catalogue.create("q", QUEUE)
        itself = QueueDescription(forward_to="Q")
        assert (await here.catalogue.update("q", itself)).description == itself
        sessions = QueueDescription(requires_session=True, forward_to="q")
        assert (await here.catalogue.create("s", sessions)).description == sessions
        await here.catalogue.create("t", TopicDescription())
        below = SubscriptionDescription(requires_session=True, forward_to="s")
        assert (await here.catalogue.create("t/Subscriptions/s", below)).description == below
    async with namespace(tmp_path) as here:
        assert here.catalogue.find("q").description == itself


async def test_what_forwards_is_never_idle(tmp_path: Path) -> None:
    async with namespace(tmp_path) as here:
        await here.catalogue.create("target", QUEUE)
        view = await here.catalogue.create(
            "q", QueueDescription(forward_to="target", auto_delete_on_idle=300_000)
        )
        assert view.description == QueueDescription(forward_to="target")


async def test_a_partitioned_entitys_size_may_come_back_times_sixteen(tmp_path: Path) -> None:
    def size(megabytes: int) -> QueueDescription:
        return QueueDescription(enable_partitioning=True, max_size_in_megabytes=megabytes)

    async with namespace(tmp_path) as here:
        await here.catalogue.create("p", size(1024))
        for given, kept in ((1024, 1024), (16_384, 1024), (32_768, 2048), (2048, 2048), (81_920, 5120)):
            view = await here.catalogue.update("p", size(given))
            assert view.description == size(kept)
        with pytest.raises(ArgumentOutOfRange):
            await here.catalogue.update("p", size(98_304))
        await here.catalogue.create("q", QUEUE)
        with pytest.raises(ArgumentOutOfRange):
            await here.catalogue.update("q", QueueDescription(max_size_in_megabytes=16_384))


async def test_rules_without_keys_get_two_and_keep_them(tmp_path: Path) -> None:
    def with_rules(*rules: AuthorizationRule) -> QueueDescription:
        return QueueDescription(authorization_rules=rules)

    def rules_of(view: EntityView) -> dict[str, AuthorizationRule]:
        assert isinstance(view.description, QueueDescription)
        return {rule.name: rule for rule in view.description.authorization_rules}

    bare = AuthorizationRule("r", frozenset({Right.SEND}), "", "")
    async with namespace(tmp_path) as here:
        made = rules_of(await here.catalogue.create("q", with_rules(bare)))["r"]
        assert len(base64.b64decode(made.primary_key)) == len(base64.b64decode(made.secondary_key)) == 32
        assert made.primary_key != made.secondary_key
        assert made.created == made.modified > 0
        kept = rules_of(await here.catalogue.update("q", with_rules(bare, replace(bare, name="new"))))
        assert kept["r"] == made
        assert kept["new"].primary_key not in (made.primary_key, "")
        rolled = rules_of(await here.catalogue.update("q", with_rules(replace(bare, primary_key="mine"))))[
            "r"
        ]
        assert (rolled.primary_key, rolled.secondary_key) == ("mine", made.secondary_key)
        assert rolled.created == made.created <= rolled.modified
        assert [rule.name for rule in here.catalogue.authorization_rules("Q")] == ["r"]
        assert here.catalogue.authorization_rules("nothing") == ()
    async with namespace(tmp_path) as here:
        assert here.catalogue.authorization_rules("q") == (rolled,)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (
            {"kind": "topic", "path": "News", "fragments": [], "description": {}},
            "it is of version 1; 2 and later",
        ),
        (
            {"kind": "queue", "path": "Q", "fragments": [1], "description": {}, "version": 2},
            "names 0 stores for 1 fragments",
        ),
        ({"kind": "queue"}, "cannot be read"),
    ],
)
async def test_a_definition_that_is_not_of_this_version_is_named(
    tmp_path: Path, definition: dict[str, object], reason: str
) -> None:
    store = SqliteStore(tmp_path / "s.db")
    store.claim()
    store.write_definitions({"entity/x": json.dumps(definition).encode()})
    store.release()
    store.close()
    with pytest.raises(StoreError, match=f"entity/x.*{reason}"):
        async with namespace(tmp_path):
            pass


def test_values_keep_their_types_in_a_definition() -> None:
    values = (
        ("i", 1),
        ("f", 1.0),
        ("b", True),
        ("s", "1"),
        ("d", TypedText("duration", "PT1S")),
        ("big", -(2**63)),
    )
    rule = RuleDescription(SqlFilter("x", values), SqlAction("y", values))
    read = decode_definition(encode_definition(EntityView("t/Subscriptions/s/Rules/r", rule, (), 5, 6)))
    assert read == EntityView("t/Subscriptions/s/Rules/r", rule, (), 5, 6)
    assert isinstance(read.description, RuleDescription)
    assert isinstance(read.description.filter, SqlFilter)
    assert [type(value) for _, value in read.description.filter.parameters] == [
        type(value) for _, value in values
    ]


async def test_the_namespace_remembers_its_creation_and_its_changes(tmp_path: Path) -> None:
    async with namespace(tmp_path) as here:
        first = here.catalogue.properties
        assert first.created == first.modified > 0
    async with namespace(tmp_path) as here:
        assert here.catalogue.properties == first
    await asyncio.sleep(0.002)
    async with namespace(tmp_path, tier=Tier.PREMIUM) as here:
        assert here.catalogue.properties.tier is Tier.PREMIUM
        assert here.catalogue.properties.created == first.created < here.catalogue.properties.modified


async def test_the_basic_tier(tmp_path: Path) -> None:
    async with namespace(tmp_path, tier=Tier.BASIC) as here:
        await here.catalogue.create("q", QUEUE)
        with pytest.raises(InvalidOperation, match="no topics"):
            await here.catalogue.create("t", TopicDescription())
        with pytest.raises(InvalidOperation, match="no message sessions"):
            await here.catalogue.create("s", QueueDescription(requires_session=True))


async def test_a_change_that_is_not_durable_is_not_made_and_not_told(tmp_path: Path) -> None:
    home = CatalogueDisk()
    async with namespace(tmp_path, disk=Disk(), catalogue_disk=home) as here:
        await here.catalogue.create("q", QUEUE)
        heard: list[str] = []
        here.catalogue.watch(lambda path, view: heard.append(path))
        home.faults.extend([Fault.FULL, Fault.LOST, Fault.FULL])
        with pytest.raises(ServerBusy):
            await here.catalogue.create("new", QUEUE)
        with pytest.raises(ServerBusy):
            await here.catalogue.update("q", QueueDescription(max_delivery_count=1))
        with pytest.raises(ServerBusy):
            await here.catalogue.delete("q")
        assert here.catalogue.find("q").description == QUEUE
        with pytest.raises(EntityNotFound):
            here.catalogue.find("new")
        assert heard == []
        made = await here.catalogue.create("new", QUEUE)
        assert set(made.fragments).isdisjoint(here.catalogue.find("q").fragments)
        assert heard == ["new"]


async def test_one_who_watches_and_fails_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with namespace(tmp_path) as here:
        heard: list[str] = []

        def fail(path: str, view: EntityView | None) -> None:
            raise RuntimeError("mine alone")

        here.catalogue.watch(fail)
        stop = here.catalogue.watch(lambda path, view: heard.append(path))
        await here.catalogue.create("q", QUEUE)
        assert heard == ["q"]
        stop()
        stop()
        await here.catalogue.delete("q")
        assert heard == ["q"]
        assert "could not be told" in caplog.text


async def test_an_idle_queue_is_deleted_and_a_used_one_stays(tmp_path: Path) -> None:
    async with namespace(tmp_path, Limits(min_auto_delete_on_idle=200)) as here:
        brief = QueueDescription(auto_delete_on_idle=300)
        for name in ("idle", "linked", "peeked"):
            await here.catalogue.create(name, brief)
        await here.catalogue.create("kept", QUEUE)
        (fragment,) = here.catalogue.find("peeked").fragments
        for request in range(1, 17):
            await asyncio.sleep(0.05)
            here.catalogue.usage.note_links(["Linked", "nothing"])
            here.host.submit([Peek(fragment, 1, request, 0, 0, 1, 1000)])
        assert [view.path for view in here.catalogue.entities()] == ["kept", "linked", "peeked"]
        here.catalogue.usage.note_no_links(["LINKED"])
        for _ in range(200):
            await asyncio.sleep(0.02)
            if len(here.catalogue) == 1:
                break
        assert [view.path for view in here.catalogue.entities()] == ["kept"]
    async with namespace(tmp_path) as here:
        assert [view.path for view in here.catalogue.entities()] == ["kept"]
