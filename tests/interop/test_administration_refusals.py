"""What management refuses, and how the vendor's administration client and bare HTTP hear of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter

from harness.serving import Busbar, config_text, serving
from tests.interop.administration import Administration, BareHttp, administrations, entry

pytestmark = pytest.mark.server({"there": {}})


@pytest_asyncio.fixture(params=["sync", "async"], loop_scope="session")
async def admin(request: pytest.FixtureRequest, server: Busbar) -> AsyncIterator[Administration]:
    client = Administration(server, asynchronous=request.param == "async")
    yield client
    await client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return "".join(char if char.isalnum() else "-" for char in request.node.name).strip("-")


async def refused(attempt: Any, kind: type[Exception], status: int, text: str) -> None:
    with pytest.raises(kind) as refusal:
        await attempt
    error: Any = refusal.value
    assert error.status_code == status
    body = error.message if type(error) is HttpResponseError else error.response.text()
    assert text in body, body


async def test_what_is_there_cannot_be_created(admin: Administration, name: str) -> None:
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    for attempt in (
        admin.create_topic(name),
        admin.create_queue(name.upper()),
        admin.create_subscription(name, "S"),
        admin.create_rule(name, "s", "$default"),
    ):
        await refused(attempt, ResourceExistsError, 409, "SubCode=40900.")


async def test_what_is_missing_is_not_found(admin: Administration, name: str) -> None:
    await admin.create_topic(f"{name}-topic")
    await admin.create_subscription(f"{name}-topic", "s")
    gone = await admin.create_queue(name)
    await admin.delete_queue(name)
    for attempt in (
        admin.get_queue(name),
        admin.get_queue_runtime_properties(name),
        admin.update_queue(gone),
        admin.delete_queue(name),
        admin.get_topic(name),
        admin.delete_topic(name),
        admin.get_subscription(f"{name}-topic", "t"),
        admin.create_subscription(name, "s"),
        admin.list_subscriptions(name),
        admin.get_rule(f"{name}-topic", "s", "r"),
        admin.delete_rule(f"{name}-topic", "s", "r"),
        admin.create_rule(f"{name}-topic", "t", "r"),
        admin.list_rules(f"{name}-topic", "t"),
    ):
        await refused(attempt, ResourceNotFoundError, 404, "SubCode=40400.")


async def test_expressions_that_say_nothing_are_refused(admin: Administration, name: str) -> None:
    await admin.create_topic(name)
    await admin.create_subscription(name, "s")
    for expression, text in (("amount >", "ends too early"), ("sys.Nonsense = 1", "not a system property")):
        attempt = admin.create_rule(name, "s", "r", filter=SqlRuleFilter(expression))
        await refused(attempt, HttpResponseError, 400, text)
    action = admin.create_rule(name, "s", "r", filter=SqlRuleFilter("a = 1"), action=SqlRuleAction("a = 1"))
    await refused(action, HttpResponseError, 400, "makes no sense at 'a'")


async def test_values_out_of_range_are_refused_with_their_names(admin: Administration, name: str) -> None:
    for property_name, value, text in (
        ("lock_duration", timedelta(minutes=6), "LockDuration"),
        ("max_delivery_count", 0, "MaxDeliveryCount"),
        ("user_metadata", "x" * 1025, "UserMetadata"),
        ("duplicate_detection_history_time_window", timedelta(days=8), "DuplicateDetectionHistoryTimeWindow"),
        ("auto_delete_on_idle", timedelta(minutes=4), "AutoDeleteOnIdle"),
        ("max_size_in_megabytes", 0, "MaxSizeInMegabytes"),
    ):
        await refused(admin.create_queue(name, **{property_name: value}), HttpResponseError, 400, text)
    queue = await admin.create_queue(name)
    for property_name in ("requires_session", "requires_duplicate_detection"):
        await refused(
            admin.update_queue(queue, **{property_name: True}), HttpResponseError, 400, "SubCode=40000."
        )
    unchanged = await admin.get_queue(name)
    assert (unchanged.requires_session, unchanged.requires_duplicate_detection) == (False, False)


async def test_dead_letters_are_forwarded_to_what_exists(admin: Administration, name: str) -> None:
    forwarding = {"forward_dead_lettered_messages_to": f"{name}-target"}
    says = "there is no queue or topic of that name"
    await refused(admin.create_queue(name, **forwarding), HttpResponseError, 400, says)
    queue = await admin.create_queue(name)
    await refused(admin.update_queue(queue, **forwarding), HttpResponseError, 400, says)
    await admin.create_topic(f"{name}-topic")
    await refused(admin.create_subscription(f"{name}-topic", "s", **forwarding), HttpResponseError, 400, says)
    assert (await admin.get_queue(name)).forward_dead_lettered_messages_to is None
    await admin.create_queue(f"{name}-target")
    await admin.update_queue(queue, **forwarding)
    await admin.create_subscription(f"{name}-topic", "s", **forwarding)
    shown = (await admin.get_queue(name)).forward_dead_lettered_messages_to
    assert shown is not None and shown.endswith(f"/{name}-target")


async def test_an_express_queue_is_made(admin: Administration, name: str) -> None:
    await admin.create_queue(name, enable_express=True)
    described = await admin.get_queue(name)
    assert described.enable_express is True
    described.enable_express = False
    await admin.update_queue(described)
    assert (await admin.get_queue(name)).enable_express is False


@pytest.mark.req("B9")
async def test_an_express_entity_cannot_detect_duplicates(admin: Administration, name: str) -> None:
    """Neither when it is created, nor when express is switched on later."""
    says = "an express entity cannot detect duplicates"
    detecting = {"requires_duplicate_detection": True}
    both = {**detecting, "enable_express": True}
    await refused(admin.create_queue(f"{name}-queue", **both), HttpResponseError, 400, says)
    await refused(admin.create_topic(f"{name}-topic", **both), HttpResponseError, 400, says)
    queue = await admin.create_queue(f"{name}-queue", **detecting)
    topic = await admin.create_topic(f"{name}-topic", **detecting)
    await refused(admin.update_queue(queue, enable_express=True), HttpResponseError, 400, says)
    await refused(admin.update_topic(topic, enable_express=True), HttpResponseError, 400, says)
    assert (await admin.get_queue(f"{name}-queue")).enable_express is False
    assert (await admin.get_topic(f"{name}-topic")).enable_express is False


@pytest.mark.req("U21")
async def test_a_window_for_duplicates_has_20_seconds_to_7_days(admin: Administration, name: str) -> None:
    def created(window: timedelta) -> Any:
        wanted = {"requires_duplicate_detection": True, "duplicate_detection_history_time_window": window}
        return admin.create_queue(f"{name}-{int(window.total_seconds())}", **wanted)

    for window in (timedelta(seconds=20), timedelta(days=7)):
        assert (await created(window)).duplicate_detection_history_time_window == window
    for window in (timedelta(seconds=19), timedelta(days=7, seconds=1)):
        await refused(created(window), HttpResponseError, 400, "DuplicateDetectionHistoryTimeWindow")


@pytest.mark.req("P11")
@pytest.mark.parametrize("partitioned", [False, True], ids=["regular", "partitioned"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_sizes_of_1_to_5_gigabytes_and_no_others(server: Busbar, kind: str, partitioned: bool) -> None:
    """Each of 16 fragments has the size as its quota: the description shows the maximum of all of them together."""
    name = f"sized-{kind}-{'partitioned' if partitioned else 'regular'}"
    shown = 16 if partitioned else 1
    admin = Administration(server, asynchronous=True)
    create, get, update = (getattr(admin, f"{verb}_{kind}") for verb in ("create", "get", "update"))
    try:
        for gigabytes in (1, 2, 3, 4, 5):
            sized = {"enable_partitioning": partitioned, "max_size_in_megabytes": gigabytes * 1024}
            await create(f"{name}-{gigabytes}", **sized)
            assert (await get(f"{name}-{gigabytes}")).max_size_in_megabytes == shown * gigabytes * 1024
        await create(name, enable_partitioning=partitioned)
        entity = await get(name)
        assert entity.max_size_in_megabytes == shown * 1024, "1 GB if nothing is said"
        for size in (0, -1024, 1, 1000, 1023, 1025, 1536, 6 * 1024, 10 * 1024, 160 * 1024):
            text = f"MaxSizeInMegabytes is {size}; 1024 to 5120 in steps of 1024 are allowed"
            attempt = create(f"{name}-none", enable_partitioning=partitioned, max_size_in_megabytes=size)
            await refused(attempt, HttpResponseError, 400, text)
            await refused(update(entity, max_size_in_megabytes=size), HttpResponseError, 400, text)
        with pytest.raises(ResourceNotFoundError):
            await get(f"{name}-none")
        assert (await get(name)).max_size_in_megabytes == shown * 1024
        await update(entity, max_size_in_megabytes=3 * 1024)
        assert (await get(name)).max_size_in_megabytes == shown * 3 * 1024
    finally:
        await admin.close()


@pytest.mark.parametrize("bad", ["<b>bold</b>", "a'b", 'a"b', "a&b", "-a", "a b", "$a", "a" * 261, "a//b"])
async def test_a_name_that_no_entity_can_have_is_refused(server: Busbar, bad: str) -> None:
    admin = Administration(server, asynchronous=True)
    try:
        for attempt in (admin.create_queue(bad), admin.create_topic(bad)):
            with pytest.raises(HttpResponseError) as refusal:
                await attempt
            assert refusal.value.status_code in (400, 404)
            response: Any = refusal.value.response
            assert "<b>" not in response.text()
    finally:
        await admin.close()


async def test_a_wrong_key_is_no_key(server: Busbar) -> None:
    for asynchronous in (False, True):
        forged = server.connection_string.replace(server.key, "another")
        admin = Administration(server, asynchronous=asynchronous, connection_string=forged)
        try:
            for attempt in (admin.get_queue("there"), admin.create_queue("forged"), admin.list_queues()):
                await refused(attempt, ClientAuthenticationError, 401, "401")
        finally:
            await admin.close()


async def test_many_changes_at_once_are_all_done(server: Busbar) -> None:
    admin = Administration(server, asynchronous=True)
    try:
        await asyncio.gather(*(admin.create_queue(f"crowd-{index}") for index in range(20)))
        raced = await asyncio.gather(
            *(admin.create_queue("crowd-same") for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(result, ResourceExistsError) for result in raced) == 4
        names = {queue.name for queue in await admin.list_queues()}
        assert {f"crowd-{index}" for index in range(20)} | {"crowd-same"} <= names
        await asyncio.gather(*(admin.delete_queue(f"crowd-{index}") for index in range(20)))
    finally:
        await admin.close()


# Limits and tiers


def in_tier(directory: Path, tier: str) -> Busbar:
    config = json.loads(config_text({"q": {}}))
    config["Busbar"] = {"Tier": tier}
    return Busbar(directory / "data", json.dumps(config))


@pytest.mark.req("P33")
async def test_the_limits_of_a_namespace_are_settings() -> None:
    limits = {"max_entities": 4, "max_partitioned_entities": 2, "max_subscriptions": 1, "max_rules": 2}
    with serving({}, limits) as limited:
        async with administrations(limited) as (admin, other):
            await admin.create_queue("p1", enable_partitioning=True)
            await other.create_topic("p2", enable_partitioning=True)
            for client in (admin, other):
                await refused(
                    client.create_queue("p3", enable_partitioning=True),
                    HttpResponseError,
                    403,
                    "SubCode=40300.",
                )
            await admin.create_queue("q1")
            await admin.create_topic("t1")
            await refused(admin.create_queue("q2"), HttpResponseError, 403, "SubCode=40300.")
            await refused(admin.create_topic("t2"), HttpResponseError, 403, "SubCode=40300.")
            await admin.create_subscription("t1", "s1")
            await refused(admin.create_subscription("t1", "s2"), HttpResponseError, 403, "SubCode=40300.")
            await admin.create_rule("t1", "s1", "r1")
            await refused(admin.create_rule("t1", "s1", "r2"), HttpResponseError, 403, "SubCode=40300.")
            # Room that is given back can be used.
            await admin.delete_queue("p1")
            await admin.create_queue("p3", enable_partitioning=True)


@pytest.mark.req("P33")
async def test_a_hundred_partitioned_entities_and_no_more() -> None:
    """Nothing is set: these are the limits that a namespace has."""
    with serving({}) as server:
        admin = Administration(server, asynchronous=True)
        try:
            for index in range(99):
                await admin.create_queue(f"p{index}", enable_partitioning=True)
            await admin.create_topic("p99", enable_partitioning=True)
            for attempt in (admin.create_queue, admin.create_topic):
                await refused(
                    attempt("one-more", enable_partitioning=True),
                    HttpResponseError,
                    403,
                    "100 partitioned entities; more than 100 are not allowed",
                )
            await admin.create_queue("regular")
            assert len(await admin.list_queues()) == 100
        finally:
            await admin.close()


@pytest.mark.req("P33")
@pytest.mark.deep
def test_ten_thousand_entities_and_no_more() -> None:
    with serving({}) as server:
        bare = BareHttp(server)
        for index in range(10_000):
            path, kind = (
                (f"/q{index}", "QueueDescription") if index % 2 else (f"/t{index}", "TopicDescription")
            )
            assert bare.request("PUT", path, entry(kind))[0] == 201
        for kind in ("QueueDescription", "TopicDescription"):
            status, _type, text = bare.request("PUT", "/one-more", entry(kind))
            assert status == 403 and "more than 10000 are not allowed" in text


async def test_the_premium_tier_has_larger_messages(tmp_path: Path) -> None:
    running = in_tier(tmp_path, "Premium").start()
    try:
        async with administrations(running) as clients:
            for kind, admin in zip(("queue", "topic"), clients, strict=True):
                create, get, update = (
                    getattr(admin, f"{verb}_{kind}") for verb in ("create", "get", "update")
                )
                plain = await create(f"{kind}-plain")
                assert plain.max_message_size_in_kilobytes == 1024
                await create(f"{kind}-large", max_message_size_in_kilobytes=102_400)
                large = await get(f"{kind}-large")
                await update(large, user_metadata="changed")
                assert (await get(f"{kind}-large")).max_message_size_in_kilobytes == 102_400
                too_large = create(f"{kind}-larger", max_message_size_in_kilobytes=102_401)
                await refused(too_large, HttpResponseError, 400, "MaxMessageSizeInKilobytes")
                express = create(f"{kind}-express", enable_express=True)
                await refused(express, HttpResponseError, 403, "the Premium tier has no express entities")
    finally:
        running.stop()


@pytest.mark.req("S2")
@pytest.mark.parametrize("tier", ["Basic", "Standard", "Premium"])
async def test_the_basic_tier_has_neither_sessions_nor_topics(tmp_path: Path, tier: str) -> None:
    running = in_tier(tmp_path, tier).start()
    try:
        async with administrations(running) as clients:
            for admin in clients:
                assert (await admin.get_namespace_properties()).messaging_sku == tier
                names = (f"sessions-{id(admin)}", f"topic-{id(admin)}")
                attempts = (admin.create_queue(names[0], requires_session=True), admin.create_topic(names[1]))
                for attempt in attempts:
                    if tier == "Basic":
                        await refused(attempt, HttpResponseError, 403, "SubCode=40301.")
                    else:
                        await attempt
    finally:
        running.stop()


# Bare HTTP


@pytest.fixture
def bare(server: Busbar) -> BareHttp:
    return BareHttp(server)


def test_types_and_codes_of_the_answers(bare: BareHttp) -> None:
    entries, feeds = (
        "application/atom+xml;type=entry;charset=utf-8",
        "application/atom+xml;type=feed;charset=utf-8",
    )
    body = entry("QueueDescription")
    assert bare.request("PUT", "/types", body)[:2] == (201, entries)
    assert bare.request("GET", "/Types/?api-version=2021-05")[:2] == (200, entries)
    assert bare.request("PUT", "/types", body, If_Match="*")[:2] == (200, entries)
    assert bare.request("GET", "/$resources/QUEUES?$top=1")[:2] == (200, feeds)
    assert bare.request("GET", "/")[:2] == (200, feeds)
    assert bare.request("GET", "/$namespaceinfo")[:2] == (200, entries)
    status, kind, text = bare.request("PUT", "/types", body)
    assert (status, kind) == (409, "application/xml; charset=utf-8")
    assert text.startswith("<Error><Code>409</Code><Detail>SubCode=40900. ")
    assert "TrackingId:" in text
    assert bare.request("DELETE", "/types") == (200, "", "")
    assert bare.request("DELETE", "/types")[0] == 404
    assert bare.request("POST", "/types", body)[0] == 405
    assert bare.request("PUT", "/$Resources/Queues", body)[0] == 405


def test_percent_encoding_is_one_spelling_of_a_path(bare: BareHttp) -> None:
    assert bare.request("PUT", "/eu%2Fencoded", entry("QueueDescription"))[0] == 201
    status, _, text = bare.request("GET", "/EU/%65ncoded")
    assert status == 200
    assert '<title type="text">eu/encoded</title>' in text


def test_all_properties_of_a_topic_that_the_sdk_does_not_send(bare: BareHttp) -> None:
    inner = "<FilteringMessagesBeforePublishing>true</FilteringMessagesBeforePublishing>"
    status, _, text = bare.request("PUT", "/filtering", entry(f"TopicDescription {inner}"))
    assert status == 201
    assert inner in text


def test_a_subscription_brings_its_first_rule(bare: BareHttp) -> None:
    assert bare.request("PUT", "/first", entry("TopicDescription"))[0] == 201
    first = (
        '<DefaultRuleDescription><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
        "<Name>mine</Name></DefaultRuleDescription>"
    )
    assert bare.request("PUT", "/first/subscriptions/s", entry(f"SubscriptionDescription {first}"))[0] == 201
    _, _, text = bare.request("GET", "/first/subscriptions/s/rules")
    assert text.count("<entry>") == 1
    assert "/first/Subscriptions/s/Rules/mine?" in text


@pytest.mark.parametrize(
    ("target", "body", "complaint"),
    [
        ("/there", "", "no body"),
        ("/new", "<entry>", "not well-formed"),
        ("/new", entry("RuleDescription"), "must be a QueueDescription or a TopicDescription"),
        ("/t/subscriptions/s", entry("QueueDescription"), "must be a SubscriptionDescription"),
        ("/t/subscriptions/s/rules/r", entry("TopicDescription"), "must be a RuleDescription"),
        ("/new?api-version=soon", entry("QueueDescription"), "is not a month"),
        (
            "/new",
            entry("QueueDescription <LockDuration>&lt;b&gt;</LockDuration>"),
            "LockDuration is '&lt;b&gt;'",
        ),
    ],
)
def test_what_cannot_be_read_is_said(bare: BareHttp, target: str, body: str, complaint: str) -> None:
    status, _, text = bare.request("PUT", target, body)
    assert status == 400
    assert complaint in text


def test_an_update_keeps_the_kind_and_knows_no_etags(bare: BareHttp) -> None:
    status, _, text = bare.request("PUT", "/there", entry("TopicDescription"), If_Match="*")
    assert (status, "has a QueueDescription" in text) == (400, True)
    assert bare.request("PUT", "/there", entry("QueueDescription"), If_Match='"1"')[0] == 412


@pytest.mark.parametrize(
    "target", ["/..", "/a/../b", "/a/%2e%2e/b", "/%2e", "/a//b", "/a%00b", "/a%5cb", "/%ff", "/a%20b"]
)
def test_a_path_that_hides_something_is_refused(bare: BareHttp, target: str) -> None:
    status, _, text = bare.request("PUT", target, entry("QueueDescription"), token=bare.token())
    assert status == 400, text


def test_lists_refuse_what_is_no_page(bare: BareHttp) -> None:
    for query in ("$skip=-1", "$top=x", "$skip=1e3", "$top=9999999999"):
        assert bare.request("GET", f"/$Resources/Queues?{query}")[0] == 400
    status, _, text = bare.request("GET", "/$Resources/Queues?$skip=1000000&$top=1000")
    assert (status, text.count("<entry>")) == (200, 0)


_LEVELS = "".join(f'<!ENTITY a{level} "{f"&a{level - 1};" * 10}">' for level in range(1, 10))
BOMB = f'<?xml version="1.0"?><!DOCTYPE entry [<!ENTITY a0 "x">{_LEVELS}]>' + entry(
    "QueueDescription <UserMetadata>&a9;</UserMetadata>"
)


def test_a_bomb_of_entities_does_not_go_off(bare: BareHttp, server: Busbar) -> None:
    before = server.resident_bytes()
    for _ in range(10):
        status, _, text = bare.request("PUT", "/bomb", BOMB)
        assert (status, "document type" in text) == (400, True)
    assert server.resident_bytes() - before < 16 * 1024 * 1024
    assert bare.request("GET", "/bomb")[0] == 404


def test_a_large_description_is_refused_before_it_is_read(bare: BareHttp) -> None:
    body = entry(f"QueueDescription <UserMetadata>{'x' * 2_000_000}</UserMetadata>")
    assert bare.request("PUT", "/large", body)[0] == 413


def test_tokens_that_do_not_open(bare: BareHttp) -> None:
    body = entry("QueueDescription")
    for token in (
        "",
        "Bearer abc",
        bare.token("there", key="wrong"),
        bare.token("there", life=-120),
        bare.token("other"),
        bare.token("ther"),
    ):
        for method in ("GET", "PUT", "DELETE"):
            status, kind, text = bare.request(method, "/there", body, token=token)
            assert (status, kind) == (401, "application/xml; charset=utf-8")
            assert "<Code>401</Code>" in text
    for target in ("/", "/$Resources/Queues", "/$namespaceinfo", "/other"):
        assert bare.request("GET", target, token=bare.token("there"))[0] == 401
    for path in ("there", "THERE", ""):
        assert bare.request("GET", "/there", token=bare.token(path))[0] == 200


def test_forwarding_needs_a_right_on_the_target_too(bare: BareHttp) -> None:
    body = entry("QueueDescription <ForwardTo>there</ForwardTo>")
    own = bare.token("forwarding")
    status, _, text = bare.request("PUT", "/forwarding", body, token=own)
    assert (status, "ServiceBusSupplementaryAuthorization" in text) == (401, True)
    wrong = {"ServiceBusSupplementaryAuthorization": bare.token("elsewhere")}
    assert bare.request("PUT", "/forwarding", body, token=own, **wrong)[0] == 401
    right = {"ServiceBusSupplementaryAuthorization": bare.token("there")}
    assert bare.request("PUT", "/forwarding", body, token=own, **right)[0] == 201
    # What it does already, it may go on doing.
    assert bare.request("PUT", "/forwarding", body, token=own, If_Match="*")[0] == 200
