"""Which subscription gets which copy: real contents in, and what a client reads of the copies."""

from __future__ import annotations

import datetime
import gc
import uuid
import weakref
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload

from busbar.amqp.codec import encode_value
from busbar.amqp.types import Decimal, Described, Float32, Int, Short, Symbol, Timestamp, UByte, UInt, ULong
from busbar.message.compose import compose
from busbar.message.content import application_properties, with_enqueued_number
from busbar.message.delivery import encode_delivery
from busbar.message.parsing import parse_message
from busbar.model.entities import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from busbar.model.message import Record, SubscriptionCopy, copy_count
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings
from busbar.pages.rows import raw_message
from busbar.rules.selection import (
    ACTION_FAILED,
    FILTER_FAILED,
    RuleCompiler,
    RuleIndex,
    SubscriptionRules,
    TopicSelector,
)
from busbar.rules.syntax import SYSTEM_PROPERTIES
from busbar.rules.topic_message import TopicMessage
from busbar.rules.work import MESSAGE_STEPS, Work

NOW = 1767225600000
ID = uuid.UUID(int=7)
PROPERTIES: dict[str, object] = {"Color": "red", "quantity": Int(7), "share": 0.5, "flag": True}


def content(raw: bytes | None = None, **fields: Any) -> bytes:
    if raw is None:
        given = {"message_id": "m1", "subject": "order", "application_properties": PROPERTIES} | fields
        raw = compose(b"the body", **given)
    return parse_message(raw, 0, len(raw), "fresh", 128).content


def rule(
    name: str, rule_filter: RuleFilter | str = "1=1", action: str | None = None
) -> tuple[str, RuleDescription]:
    chosen = SqlFilter(rule_filter) if isinstance(rule_filter, str) else rule_filter
    return name, RuleDescription(chosen, None if action is None else SqlAction(action))


def subscriber(*rules: tuple[str, RuleDescription], dead_letters: bool = True) -> SubscriptionRules:
    return SubscriptionRules(rules, dead_letters, lambda: ID)


def copies(
    *subscribers: SubscriptionRules, given: bytes | None = None, index: int = 0, ttl: int = 0
) -> list[SubscriptionCopy]:
    selector = TopicSelector(index, list(enumerate(subscribers, 100)))
    return selector.select_copies(content() if given is None else given, 5, NOW, ttl)


def received(copy: SubscriptionCopy) -> ServiceBusReceivedMessage:
    """As the Azure SDK reads it from the wire."""
    record = Record(1, NOW, 0, 0, 0, len(copy.content), copy.content, None)
    payload = encode_delivery(record, 1, NOW + 60_000, -1)
    return ServiceBusReceivedMessage(decode_payload(memoryview(payload)), receiver=None)


# ---- how many copies ----


def test_rules_without_actions_are_one_copy_and_each_action_adds_one() -> None:
    found = copies(
        subscriber(
            rule("plain1"),
            rule("acting1", "color = 'red'", "SET mark = 1"),
            rule("plain2", "quantity > 5"),
            rule("acting2", TrueFilter(), "SET mark = 2"),
            rule("plain3", CorrelationFilter(label="order")),
        )
    )
    assert len(found) == 3
    names = [application_properties(copy.content).get("RuleName") for copy in found]
    assert sorted(map(str, names)) == ["None", "acting1", "acting2"]


def test_every_subscription_is_asked_in_its_order() -> None:
    found = copies(
        subscriber(rule("$Default", TrueFilter())),
        subscriber(rule("no", FalseFilter())),
        subscriber(rule("sql", "color = 'blue'")),
        subscriber(rule("correlation", CorrelationFilter(message_id="m1"))),
        subscriber(),
        subscriber(rule("sql", "color = 'red'")),
    )
    assert [copy.fragment for copy in found] == [100, 103, 105]
    assert len({id(copy.content) for copy in found}) == 1  # they share it


def test_what_is_not_matched_by_anyone_makes_no_copy() -> None:
    assert copies(subscriber(rule("no", FalseFilter())), subscriber()) == []
    assert copies() == []


def test_a_message_is_decoded_only_when_a_rule_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("application_properties", "property_fields", "kept_annotations"):
        monkeypatch.setattr(f"busbar.rules.topic_message.{name}", lambda given: pytest.fail("decoded"))
    everyone = subscriber(rule("yes", TrueFilter()), rule("no", FalseFilter()))
    assert len(copies(everyone, subscriber(rule("no", FalseFilter())))) == 1
    assert copy_count(copies(everyone, subscriber(rule("constant", "1 = 1")))) == 2


def test_a_message_is_decoded_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(given: bytes) -> dict[str, object]:
        calls.append(1)
        return application_properties(given)

    monkeypatch.setattr("busbar.rules.topic_message.application_properties", counted)
    choosy = [
        subscriber(rule("r", "color = 'red'"), rule("a", "quantity = 7", "SET a = 1")) for _ in range(10)
    ]
    assert len(copies(*choosy)) == 20
    assert len(calls) == 1


# ---- the number, and the bytes ----


@pytest.mark.parametrize("index", [0, 15])
def test_every_copy_carries_the_topics_number(index: int) -> None:
    found = copies(subscriber(rule("plain"), rule("acting", "1=1", "SET a = 1")), index=index)
    assert [received(copy).enqueued_sequence_number for copy in found] == [index << 48 | 5] * 2


def test_an_unchanged_copy_is_the_message_as_it_was_sent() -> None:
    raw = compose(b"the body", message_id="m1", partition_key="pk", application_properties=PROPERTIES)
    (copy,) = copies(subscriber(rule("plain")), given=content(raw))
    assert raw_message(copy.content) == raw_message(content(raw))
    assert copy.content == with_enqueued_number(content(raw), 5)
    message = received(copy)
    assert (message.message_id, message.partition_key, str(message)) == ("m1", "pk", "the body")


def test_what_an_action_changes_and_what_it_leaves() -> None:
    footer = encode_value(Described(0x78, {Symbol("sum"): b"123"}))
    given = content(compose(b"the body", message_id="m1", application_properties=PROPERTIES) + footer)
    action = (
        "SET COLOR = 'blue'; SET quantity = quantity + 1; REMOVE share; SET new = newid();"
        "SET sys.Label = 'changed'; SET sys.To = 'you'; SET sys.SessionId = 's1'; SET sys.MessageId = 'm2';"
        "SET sys.ContentType = 'text/plain'; SET sys.CorrelationId = sys.MessageId; SET sys.PartitionKey = 'pk';"
        "SET sys.ScheduledEnqueueTimeUtc = '2026-02-01T00:00:00Z'; SET sys.ReplyToSessionId = 'r'"
    )
    (copy,) = copies(subscriber(rule("changes", "1=1", action)), given=given)
    assert copy.reason == ""
    assert copy.content.endswith(footer) and b"the body" in copy.content
    properties = application_properties(copy.content)
    assert properties == {"Color": "blue", "quantity": 8, "flag": True, "new": ID, "RuleName": "changes"}
    assert type(properties["quantity"]) is Int  # as wide as it was
    message = received(copy)
    assert (message.subject, message.to, message.session_id, message.message_id) == (
        "changed",
        "you",
        "s1",
        "m2",
    )
    assert (message.correlation_id, message.partition_key) == ("m2", "pk")
    assert (message.content_type, message.reply_to_session_id) == ("text/plain", "r")
    assert message.scheduled_enqueue_time_utc == datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC)
    raw = raw_message(copy.content)
    assert with_enqueued_number(content(raw), 5) == copy.content  # what a sender could have sent


@pytest.mark.parametrize(
    ("old", "action", "new"),
    [
        (UByte(1), "SET x = 255", UByte(255)),
        (UByte(1), "SET x = 256", 256),
        (Short(1), "SET x = x - 2", Short(-1)),
        (UInt(1), "SET x = -1", -1),
        (ULong(1), "SET x = x + 1", ULong(2)),
        (Float32(1.5), "SET x = x * 2", Float32(3.0)),
        (Float32(1.5), "SET x = 0.1", 0.1),
        (Float32(1.5), "SET x = 1e300", 1e300),
        (Symbol("a"), "SET x = x + 'b'", Symbol("ab")),
        (Timestamp(5), "SET x = '1970-01-01T00:00:01Z'", Timestamp(1000)),
        ("text", "SET x = 5", "5"),
        (5, "SET x = y", 5),
        ([1, 2], "SET z = x; SET x = 1", 1),
    ],
)
def test_a_changed_property_keeps_its_type_if_the_value_fits(old: object, action: str, new: object) -> None:
    given = content(application_properties={"x": old, "y": "5"})
    (copy,) = copies(subscriber(rule("r", "1=1", action)), given=given)
    found = application_properties(copy.content)
    assert found["x"] == new and type(found["x"]) is type(new)
    assert found.get("z", [1, 2]) == [1, 2]


def test_actions_do_not_see_each_other() -> None:
    found = copies(
        subscriber(
            rule("a", "1=1", "SET quantity = quantity + 1"), rule("b", "1=1", "SET quantity = quantity + 1")
        )
    )
    assert [application_properties(copy.content)["quantity"] for copy in found] == [8, 8]


def test_the_durable_flag_can_be_set() -> None:
    (copy,) = copies(subscriber(rule("r", "NOT sys.ForcePersistence", "SET sys.ForcePersistence = TRUE")))
    assert copy.content[0] & 1


# ---- what a rule sees ----


@pytest.mark.parametrize(
    "expression",
    [
        "sys.MessageId = 'm1' AND sys.Label = 'order' AND sys.Subject = 'order'",
        "sys.To = 'to' AND sys.ReplyTo = 'back' AND sys.CorrelationId = 'c' AND sys.ContentType = 'text/plain'",
        "sys.SessionId = 's' AND sys.ReplyToSessionId = 'rs' AND sys.PartitionKey = 's'",
        "sys.EnqueuedSequenceNumber = 5 AND sys.SequenceNumber = 5 AND sys.DeliveryCount = 0 AND sys.State = 0",
        "sys.EnqueuedTimeUtc = '2026-01-01T00:00:00Z' AND sys.ExpiresAtUtc = '2026-01-01T00:01:00Z'",
        "sys.TimeToLive = 'PT1M' AND sys.TimeToLive < 'P1D'",
        "sys.ScheduledEnqueueTimeUtc > '2025-12-31' AND sys.Size > 10",
        "sys.ViaPartitionKey IS NULL AND sys.LockedUntilUtc IS NULL AND sys.DeadLetterSource IS NULL",
        "color = 'red' AND COLOR LIKE 'r%' AND quantity IN (6, 7) AND share < 1 AND flag",
    ],
)
def test_what_rules_see_of_a_message(expression: str) -> None:
    given = content(
        to="to",
        reply_to="back",
        correlation_id="c",
        content_type="text/plain",
        session_id="s",
        reply_to_session_id="rs",
        partition_key="s",
        scheduled_enqueue_time=NOW,
    )
    found = copies(subscriber(rule("r", expression)), given=given, ttl=60_000)
    assert [copy.reason for copy in found] == [""]


@pytest.mark.parametrize("name", sorted(SYSTEM_PROPERTIES))
def test_every_system_property_can_be_asked_for(name: str) -> None:
    TopicMessage(content(), 5, NOW, 0, Work()).system(name)


@pytest.mark.parametrize(
    ("value", "expression"),
    [
        (Described(Symbol("com.microsoft:timespan"), 600_000_000), "x = 'PT1M'"),
        (
            Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000),
            "x = '1970-01-01T00:00:00Z'",
        ),
        (Described(Symbol("com.microsoft:uri"), "urn:a"), "x LIKE 'urn:%'"),
        (ULong(2**64 - 1), "x > 1e19"),
        (ULong(5), "x = 5"),
        (Symbol("s"), "x = 's'"),
        (Timestamp(0), "x = '1970-01-01'"),
        (ID, f"x = '{ID}'"),
        (None, "x IS NULL AND EXISTS(x)"),
        ([1], "EXISTS(x) AND x IS NOT NULL"),
        (Decimal(0x74, bytes(4)), "EXISTS(x)"),
    ],
)
def test_amqp_types_as_rules_see_them(value: object, expression: str) -> None:
    given = content(application_properties={"x": value})
    assert [copy.reason for copy in copies(subscriber(rule("r", expression)), given=given)] == [""]


def test_ids_of_other_types_are_text() -> None:
    raw = encode_value(Described(0x73, [ULong(5), None, None, None, None, ID])) + encode_value(
        Described(0x77, 1)
    )
    found = copies(
        subscriber(rule("r", f"sys.MessageId = '5' AND sys.CorrelationId = '{ID}'")), given=content(raw)
    )
    assert [copy.reason for copy in found] == [""]


# ---- errors ----


@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_filter_without_an_answer(dead_letters: bool) -> None:
    failing = [rule("bad", "color > 5"), rule("worse", "1 / 0 = quantity"), rule("act", "color", "SET a = 1")]
    found = copies(subscriber(*failing, dead_letters=dead_letters), subscriber(rule("fine")))
    assert [copy.reason for copy in found] == ([FILTER_FAILED, ""] if dead_letters else [""])
    if dead_letters:
        assert found[0].description == "Rule 'bad': a text cannot be compared with a number"
        assert found[0].content is found[1].content


def test_a_filter_that_fails_beside_one_that_matches_is_not_missed() -> None:
    for rules in ([rule("bad", "color > 5"), rule("good")], [rule("good"), rule("bad", "color > 5")]):
        assert [copy.reason for copy in copies(subscriber(*rules))] == [""]
    acting = rule("bad", "color > 5", "SET a = 1")
    assert [copy.reason for copy in copies(subscriber(acting, rule("good")))] == ["", FILTER_FAILED]


@pytest.mark.parametrize("dead_letters", [True, False])
@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("SET a = quantity / 0", "division by zero"),
        ("SET sys.MessageId = missing", "needs an id"),
        ("SET sys.SessionId = long", "the limit is 128"),
        ("SET a = long; SET b = long; SET c = long", "65536 bytes"),
        ("nonsense", "makes no sense"),
    ],
)
def test_an_action_that_fails(action: str, says: str, dead_letters: bool) -> None:
    given = content(application_properties=PROPERTIES | {"long": "x" * 30_000})
    found = copies(
        subscriber(rule("r", "1=1", action), rule("plain"), dead_letters=dead_letters), given=given
    )
    assert [copy.reason for copy in found] == ([ACTION_FAILED, ""] if dead_letters else [""])
    if dead_letters:
        assert says in found[0].description and found[0].description.startswith("Rule 'r': ")
        assert found[0].content is found[1].content


@pytest.mark.parametrize(
    "rule_filter", [SqlFilter("no sense at all"), SqlFilter("a = @p"), CorrelationFilter()]
)
def test_a_rule_that_cannot_be_compiled_is_an_error_of_its_own(rule_filter: RuleFilter) -> None:
    found = copies(subscriber(rule("old", rule_filter)), subscriber(rule("$Default", TrueFilter())))
    assert [copy.reason for copy in found] == [FILTER_FAILED, ""]


def test_a_content_of_an_unknown_make_does_not_take_the_topic_down() -> None:
    broken = b"\x10\x00\x00\x00\x00\x00\x00\x00\xff\xff"
    found = copies(
        subscriber(rule("r", "color = 'red'")), subscriber(rule("all", TrueFilter())), given=broken
    )
    assert [(copy.fragment, copy.reason) for copy in found] == [(101, "")]
    assert copies(subscriber(rule("c", CorrelationFilter(label="x"))), given=broken) == []
    (copy,) = copies(subscriber(rule("a", "1=1", "SET a = 1")), given=broken)
    assert copy.reason == ACTION_FAILED


# ---- many correlation filters ----


def test_the_right_correlation_filters_are_found_among_many() -> None:
    many = [
        subscriber(
            *[
                rule(f"r{j}", CorrelationFilter(label="order", properties=(("number", i * 10 + j),)))
                for j in range(10)
            ],
            rule("sql", f"sys.CorrelationId = 'c{i}'"),
        )
        for i in range(50)
    ]
    distribution = TopicSelector(0, list(enumerate(many)))
    for number, correlation, right in (
        (123, None, [12]),
        (123, "c40", [12, 40]),
        (7.0, "c0", [0]),
        (True, None, []),
    ):
        given = content(correlation_id=correlation, application_properties={"number": number})
        assert [copy.fragment for copy in distribution.select_copies(given, 1, NOW, 0)] == right
    given = content(subject="other", application_properties={"number": 123})
    assert distribution.select_copies(given, 1, NOW, 0) == []


def test_correlation_filters_are_looked_up_by_their_rarest_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    many = [
        subscriber(rule("r", CorrelationFilter(label="order", correlation_id=f"c{i}"))) for i in range(1000)
    ]
    distribution = TopicSelector(0, list(enumerate(many)))
    select = SubscriptionRules.select

    def counted(
        self: SubscriptionRules,
        rules: Any,
        fragment: int,
        message: TopicMessage,
        found: list[SubscriptionCopy],
    ) -> None:
        asked.append(rules[0].name)
        select(self, rules, fragment, message, found)

    monkeypatch.setattr(SubscriptionRules, "select", counted)
    found = distribution.select_copies(content(correlation_id="c777"), 1, NOW, 0)
    assert [copy.fragment for copy in found] == [777] and len(asked) == 1


def test_the_fragments_of_a_topic_share_a_plan() -> None:
    subscribers = [
        subscriber(rule("a", CorrelationFilter(label="order"))),
        subscriber(rule("b", "color = 'blue'")),
    ]
    plan = RuleIndex(subscribers)
    for index in range(3):
        distribution = TopicSelector(
            index, [(index * 10 + at, one) for at, one in enumerate(subscribers)], plan
        )
        (copy,) = distribution.select_copies(content(), 5, NOW, 0)
        assert copy.fragment == index * 10 and received(copy).enqueued_sequence_number == index << 48 | 5


def test_actions_of_correlation_filters_change_their_copies() -> None:
    acting = rule("c", CorrelationFilter(label="order"), "SET sys.To = 'there'")
    found = copies(subscriber(acting, rule("sql", "quantity = 7")))
    assert sorted(received(copy).to or "" for copy in found) == ["", "there"]


@pytest.mark.parametrize(
    ("expression", "takes"), [("1=1", True), (" 1 = 1 ", True), ("1=0", False), ("2=2", False)]
)
def test_everything_as_configurations_write_it_needs_no_look_at_the_message(
    expression: str, takes: bool
) -> None:
    assert subscriber(("$Default", RuleDescription(SqlFilter(expression)))).matches_all is takes


SLOW = " OR ".join(["a LIKE '%a_b%'"] * 55)


def test_a_rule_that_takes_too_long_fails_like_any_other() -> None:
    given = content(application_properties={"a": "a" * 60_000})
    (letter,) = copies(subscriber(rule("slow", SLOW)), given=given)
    assert letter.reason == FILTER_FAILED
    assert letter.description == (
        "Rule 'slow': the rule needs more than 4194304 steps for this message, which is the limit of a rule"
    )
    assert copies(subscriber(rule("slow", SLOW), dead_letters=False), given=given) == []
    action = "; ".join(["SET b = a LIKE '%a_b%'"] * 32)
    (letter,) = copies(subscriber(rule("slow", "1=1", action)), given=given)
    assert letter.reason == ACTION_FAILED and "the limit of a rule" in letter.description
    (copy,) = copies(subscriber(rule("slow", SLOW), rule("all")), given=given)
    assert not copy.reason, "one that matches beside it is enough"


def test_what_rules_spend_on_a_message_is_bounded_and_told() -> None:
    given = content(application_properties={"a": "a" * 60_000})
    distribution = TopicSelector(0, [(at, subscriber(rule("slow", SLOW))) for at in range(40)])
    told = [copy.description for copy in distribution.select_copies(given, 1, NOW, 0)]
    assert "the limit of a rule" in told[0] and "which is their limit together" in told[-1]
    first = distribution.spent()
    distribution.select_copies(content(), 2, NOW, 0)
    asking = distribution.spent() - first
    assert 0 < asking < first // 100, "short values cost nothing but asking"
    assert MESSAGE_STEPS // 2 < first - asking <= MESSAGE_STEPS
    assert len(distribution.select_copies(given, 3, NOW, 0)) == 40
    assert distribution.spent() == 2 * first + asking, "every message has its own steps"


def test_asking_takes_longer_the_more_and_the_longer_the_rules_are() -> None:
    short, long = "number = 3", " OR ".join(["number = 3"] * 60)

    def steps(*rules: tuple[str, RuleDescription]) -> int:
        distribution = TopicSelector(0, [(1, subscriber(*rules))])
        distribution.select_copies(content(), 1, NOW, 0)
        return distribution.spent()

    one = steps(rule("r", short))
    assert one > 0 and steps(*[rule(f"r{n}", short) for n in range(100)]) == 100 * one
    assert 20 * one < steps(rule("r", long)) < 40 * one
    assert steps(rule("r", CorrelationFilter(label="x"))) == 0, "those are looked up"
    assert steps(rule("all")) == 0


def test_a_binary_id_is_made_text_once() -> None:
    fields = ["m", None, None, None, None, b"\x00" * 1000]
    raw = b"".join(
        encode_value(Described(ULong(code), part)) for code, part in ((0x73, fields), (0x75, b"x"))
    )
    message = TopicMessage(content(raw), 5, NOW, 0, Work())
    assert message.system("correlationid") == "00" * 1000
    assert message.system("correlationid") is message.system("correlationid")


def test_rules_that_did_not_change_are_not_compiled_again() -> None:
    first, second = rule("a", "number = 3"), rule("b", "number = 4")
    before = subscriber(first, second)
    kept, _ = before.rules
    other = rule("b", "number = 5")
    unused = SubscriptionRules(
        [first], True, uuid.uuid4, before=before
    )  # changed again before the first message
    after = SubscriptionRules([first, other, rule("c", "1=0")], True, uuid.uuid4, before=unused)
    assert after.rules[0] is kept
    assert [one.name for one in after.rules] == ["a", "b"]
    given = content(application_properties={"number": 5})
    assert [copy.reason for copy in copies(after, given=given)] == [""]
    like_the_first = SubscriptionRules([rule("a", "number = 3")], True, uuid.uuid4, before=before)
    assert like_the_first.rules[0] is not kept, "it is another one"


def test_all_fragments_of_a_topic_share_what_is_compiled_and_a_change_compiles_what_changed() -> None:
    compiler = RuleCompiler(lambda: ID)
    first, second = RuleSet((rule("a", "quantity = 7"), rule("b", "1=0")), False), RuleSet((rule("c"),), True)
    both = TopicRules((first, second))
    made = [compiler.selector(TopicSettings(index, (10 + index, 20 + index), both)) for index in range(2)]
    for index, one in enumerate(made):
        assert [copy.fragment for copy in one.select_copies(content(), 5, NOW, 0)] == [10 + index, 20 + index]
    elsewhere = compiler.selector(TopicSettings(2, (12, 22), TopicRules((first, second))))  # in another store
    for one in (made[1], elsewhere):
        assert [rules for _, rules in one.subscribers] == [rules for _, rules in made[0].subscribers]
    changed = RuleSet((first.rules[0], rule("b", "quantity = 8")), False)
    after = compiler.selector(TopicSettings(0, (10, 20, 30), TopicRules((changed, second, first))), made[0])
    (_, kept), (_, same), (_, new) = after.subscribers
    before = made[0].subscribers[0][1]
    assert kept is not before and kept.rules[0] is before.rules[0]
    assert same is made[0].subscribers[1][1] and new is before


def test_rules_that_are_gone_are_not_kept() -> None:
    compiler = RuleCompiler(lambda: ID)
    topic = TopicSettings(0, (1,), TopicRules((RuleSet((rule("a"),), False),)))
    made = compiler.selector(topic)
    gone = weakref.ref(made.subscribers[0][1])
    assert made.select_copies(content(), 1, NOW, 0)
    del topic, made
    gc.collect()
    assert gone() is None


def test_new_ids_come_from_where_the_broker_says() -> None:
    compiler = RuleCompiler(lambda: ID)
    acting = RuleSet((rule("a", "1=1", "SET id = newid()"),), False)
    (copy,) = compiler.selector(TopicSettings(0, (1,), TopicRules((acting,)))).select_copies(
        content(), 1, NOW, 0
    )
    assert application_properties(copy.content)["id"] == ID
