"""Pages of the console with the values of a shop, for the pictures of the documents."""

from __future__ import annotations

import math

from busbar.console.connection_pages import connections_page
from busbar.console.dead_letter_pages import dead_letters_page
from busbar.console.diagnosis_pages import history_page, rule_test_page
from busbar.console.entity_pages import entity_page
from busbar.console.history import CountHistory
from busbar.console.message_pages import messages_page
from busbar.console.messages import DeadLetterSummary, Lane, MessageRange, MessageSummary
from busbar.console.namespace import (
    Address,
    ConnectionsPage,
    ConnectionSummary,
    DescribedMessage,
    Entity,
    EntityPage,
    EntityType,
    FragmentSummary,
    HeldCounts,
    LinkSummary,
    StepSummary,
    SubscriptionVerdict,
)
from busbar.console.overview_page import Overview, Shown, overview_page

PLACE = "https://broker.example:443"
NOW = 3_600.0


def entity(kind: EntityType, name: str, messages: int = 0, dead: int = 0, **more: bool | int | str) -> Entity:
    values: dict[str, object] = {
        "status": "Active", "available": True, "partitioned": False, "requires_session": False,
        "detects_duplicates": False, "scheduled": 0, "size": "0 B", "subscriptions": 0, "settings": {}, "runtime": {},
    }  # fmt: skip
    return Entity(Address(kind, name), messages=messages, dead_letters=dead, **{**values, **more})  # type: ignore[arg-type]


QUEUES = (
    entity(EntityType.QUEUE, "shop/invoices", 312, 0, size="1.1 MiB", detects_duplicates=True),
    entity(EntityType.QUEUE, "shop/orders", 1_840, 6, size="7.4 MiB", partitioned=True, scheduled=12),
    entity(EntityType.QUEUE, "shop/payments", 95, 31, size="402 KiB", requires_session=True),
    entity(EntityType.QUEUE, "shop/returns", status="ReceiveDisabled"),
)
TOPICS = (
    entity(EntityType.TOPIC, "news", subscriptions=3, size="88 KiB"),
    entity(EntityType.TOPIC, "prices", subscriptions=41, size="2.0 MiB", partitioned=True),
)


def history() -> CountHistory:
    """An hour in which a consumer was away for some minutes."""
    found = CountHistory()
    taken = delivered = 0
    for number in range(361):
        rate = 60 + round(25 * math.sin(number / 40))
        away = 150 <= number < 230
        taken += 10 * rate
        delivered += 0 if away else min(10 * rate + 220, taken - delivered)
        backlog = taken - delivered
        found.add(
            number * 10.0,
            {
                "shop/orders": HeldCounts(backlog, 6, taken, delivered),
                "shop/invoices": HeldCounts(312 + number % 40, 0, 4 * number, 4 * number),
                "shop/payments": HeldCounts(95 + number // 9, number // 12, 9 * number, 8 * number),
            },
        )
    return found


def overview() -> str:
    found = Overview(EntityPage(QUEUES, False), EntityPage(TOPICS, False), ())
    return overview_page(found, Shown(0, 0, 50, ""), history(), NOW, PLACE)


def dead_letters() -> str:
    groups = (
        DeadLetterSummary(
            "CardDeclined", "shop/payments", 27, "2026-01-31 09:12:40Z", "2026-01-31 12:30:05Z", "code 51"
        ),
        DeadLetterSummary(
            "MaxDeliveryCountExceeded", "shop/payments", 4, "2026-01-31 11:58:00Z", "2026-01-31 12:02:31Z", ""
        ),
    )
    messages = [
        MessageSummary(
            4_711 + number,
            f"2026-01-31 12:0{number}:13Z",
            "Active",
            10 if number == 1 else 1,
            f"pay-{88_120 + number}",
            f"customer-{number}",
            "payment",
            "MaxDeliveryCountExceeded" if number == 1 else "CardDeclined",
            f'{{"amount": {19 + number}.90, "card": "…{4_000 + number}"}}',
        )
        for number in range(4)
    ]
    return dead_letters_page(
        QUEUES[2], Lane.DEAD_LETTER, groups, MessageRange(messages, 4_715), start=1, place=PLACE
    )


def orders() -> str:
    fragments = [
        FragmentSummary(
            index, f"store-{index % 4}", True, "", 90 + 37 * index % 60, int(index == 5) * 6, 1, "470 KiB"
        )
        for index in range(16)
    ]
    return entity_page(QUEUES[1], history(), NOW, fragments=fragments, place=PLACE)


def messages() -> str:
    rows = [
        MessageSummary(
            9_007 + number,
            f"2026-01-31 12:0{number}:41Z",
            "Locked" if number < 2 else "Active",
            int(number < 2),
            f"order-{1_007 + number}",
            "",
            "order",
            "",
            f'{{"order": {1_007 + number}, "customer": "Ada", "lines": [{{"sku": "A-{number}", "count": {number + 1}}}]}}',
        )
        for number in range(6)
    ]
    found = MessageRange(rows, 9_013)
    return messages_page(QUEUES[1], Lane.ACTIVE, found, start=9_007, session=None, place=PLACE)


def rule_test() -> str:
    verdicts = (
        SubscriptionVerdict("all", True, [("$Default", "the filter is true for every message")]),
        SubscriptionVerdict(
            "europe",
            False,
            [
                (
                    "region",
                    "`amount > 100` is false, where property 'amount' is 80; `region = 'eu'` is true, where property "
                    "'region' is 'eu'",
                )
            ],
        ),
        SubscriptionVerdict(
            "vip", False, [("vip", "`vip = TRUE` is UNKNOWN because property 'vip' is missing")]
        ),
    )
    return rule_test_page(
        TOPICS[0], DescribedMessage("", "order", "region=eu\namount=80"), verdicts, place=PLACE
    )


def message_history() -> str:
    times = ("11:58:00.112", "11:58:00.130", "11:59:00.131", "11:59:02.004", "12:00:02.007")
    what = ("sent", "delivered", "lock expired", "delivered", "dead-lettered")
    by = ("shop-frontend", "billing", "", "billing", "billing")
    steps = [
        StepSummary(
            f"2026-01-31 {time}Z",
            "shop/payments",
            "4711",
            each,
            "MaxDeliveryCountExceeded" if each == "dead-lettered" else "",
            f"{client} at 10.0.0.{5 + len(client) % 3}" if client else "",
        )
        for time, each, client in zip(times, what, by, strict=True)
    ]
    return history_page("pay-88121", steps, ["*"], done="", csrf="", place=PLACE)


def connections() -> str:
    clients = (
        ("billing azsdk-python-servicebus/7.14.2 Python/3.12.3", "shop/payments", 0.4, 2_000, 0, True),
        ("shop-frontend azsdk-js-azureservicebus/7.9.5", "shop/orders", 62.0, 0, 940, True),
        ("warehouse azsdk-python-servicebus/7.14.2 Python/3.12.3", "shop/orders", 58.5, 40, 60, False),
    )
    rows = [
        ConnectionSummary(
            f"c{number}",
            f"10.0.0.{5 + number}:4{number}112",
            client,
            ["billing" if number == 0 else "shop"],
            f"2026-01-31 {8 + number:02}:12:40Z",
            rate,
            unsettled,
            credit,
            2,
            [LinkSummary("receiver" if unsettled else "sender", entity, 90_000, rate, unsettled, credit)],
            "",
            is_tls,
        )
        for number, (client, entity, rate, unsettled, credit, is_tls) in enumerate(clients)
    ]
    found = ConnectionsPage(rows, len(rows), 0)
    return connections_page(found, entity="", sort="unsettled", skip=0, limit=50, closed="", place=PLACE)
