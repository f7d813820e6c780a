"""What names and descriptions must keep to, and that an error names the value and the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.model.checks import (
    check_name,
    check_path,
    check_queue,
    check_rule,
    check_subscription,
    check_topic,
)
from busbar.model.entities import (
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    Tier,
    TopicDescription,
)
from busbar.model.errors import ArgumentError, ArgumentOutOfRange, BusbarError, InvalidOperation
from busbar.model.limits import Limits, limits_of
from busbar.model.names import above, parent_and_name

LIMITS = Limits()


@pytest.mark.parametrize(
    "path",
    [
        *(
            "a",
            "orders",
            "Eu/Orders",
            "a/b/c",
            "q.1",
            "a_b-c~d",
            "subscriptions/a",
            "a/rules",
            "x" * 260,
            "9",
        ),
        *("txt/.-_123", "a./.b", "a-/-b", "a_/_b", "a.../...b", "a/-/b", "a/...a"),
    ],
)
def test_paths_that_are_names(path: str) -> None:
    assert check_path(path, LIMITS) == path


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "has 0 characters; 1 to 260"),
        ("x" * 261, "has 261 characters"),
        ("..", "must start and end with a letter or a digit"),
        ("a/../b", "the segment '..', which means another place"),
        ("a/./b", "the segment '.', which means another place"),
        ("a/..", "must start and end with a letter or a digit"),
        (".a/b", "must start and end with a letter or a digit"),
        ("a/b.", "must start and end with a letter or a digit"),
        ("_a", "must start and end with a letter or a digit"),
        ("../etc/passwd", "must start and end"),
        ("/a", "must start and end"),
        ("a/", "must start and end"),
        ("a//b", "empty segment"),
        ("a\\b", "the character '\\\\'"),
        ("a%2Fb", "the character '%'"),
        ("<script>", "the character '<'"),
        ("a&b", "the character '&'"),
        ("a b", "the character ' '"),
        ("a\nb", "the character '\\n'"),
        ("a\x00", "the character '\\x00'"),
        ("$cbs", "the character '$'"),
        ("q/$DeadLetterQueue", "the character '$'"),
        ("caf\u00e9", "the character 'é'"),
        ("-a", "must start and end"),
        ("a-", "must start and end"),
        ("t/Subscriptions/s", "the segment 'Subscriptions'"),
        ("t/subscriptions", "the segment 'subscriptions'"),
        ("q/messages/head", "the segment 'messages'"),
    ],
)
def test_paths_that_are_none(path: str, says: str) -> None:
    with pytest.raises(BusbarError) as refusal:
        check_path(path, LIMITS)
    assert isinstance(refusal.value, ArgumentError | ArgumentOutOfRange)
    assert says in refusal.value.text
    assert not set("<>&\n\x00") & set(refusal.value.text.replace("'<'", "").replace("'&'", "")), (
        "it is shown to people"
    )


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        check_path(text, LIMITS)
    except (ArgumentError, ArgumentOutOfRange):
        return
    assert text.isascii() and parent_and_name(text) == ("", text)


def test_names_of_subscriptions_and_rules() -> None:
    for name in ("s", "a.b", "x" * 50):
        assert check_name(name, "subscription", LIMITS) == name
    assert check_name("$Default", "rule", LIMITS) == "$Default"
    for name, kind in (
        ("$Default", "subscription"),
        ("$other", "rule"),
        ("a/b", "rule"),
        ("x" * 51, "rule"),
        ("", "rule"),
    ):
        with pytest.raises(BusbarError, match=f"The {kind} name"):
            check_name(name, kind, LIMITS)


def test_paths_are_made_of_names() -> None:
    assert parent_and_name("eu/orders") == ("", "eu/orders")
    assert parent_and_name("eu/t/subscriptions/S") == ("eu/t", "S")
    assert parent_and_name("T/SUBSCRIPTIONS/S/rules/R") == ("T/SUBSCRIPTIONS/S", "R")
    assert above("t/Subscriptions/s/Rules/r") == ["t/Subscriptions/s/Rules/r", "t/Subscriptions/s", "t"]
    assert above("q") == ["q"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lock_duration": 4_999}, "LockDuration is 4.999 s; 5 s to 300 s are allowed"),
        ({"lock_duration": 300_001}, "LockDuration is 300.001 s"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount is 0; at least 1"),
        ({"max_delivery_count": 2**31}, "MaxDeliveryCount is 2147483648; at most"),
        ({"default_message_time_to_live": 999}, "DefaultMessageTimeToLive is 0.999 s; at least 1 s"),
        ({"max_size_in_megabytes": 1}, "MaxSizeInMegabytes is 1; 1024 to 5120 in steps of 1024"),
        ({"max_size_in_megabytes": 1500}, "MaxSizeInMegabytes is 1500"),
        ({"max_size_in_megabytes": 6144}, "MaxSizeInMegabytes is 6144"),
        ({"max_message_size": 257 * 1024}, "MaxMessageSizeInKilobytes is 257; at most 256"),
        (
            {"duplicate_detection_history_time_window": 19_999},
            "DuplicateDetectionHistoryTimeWindow is 19.999 s",
        ),
        ({"duplicate_detection_history_time_window": 604_800_001}, "20 s to 604800 s are allowed"),
        ({"auto_delete_on_idle": 299_999}, "AutoDeleteOnIdle is 299.999 s; at least 300 s"),
        ({"user_metadata": "x" * 1025}, "UserMetadata has 1025 characters; at most 1024"),
        (
            {"enable_express": True, "requires_duplicate_detection": True},
            "an express entity cannot detect duplicates",
        ),
    ],
)
def test_a_queues_values(changes: dict[str, Any], says: str) -> None:
    assert check_queue("q", QueueDescription(), LIMITS) == QueueDescription()
    with pytest.raises(BusbarError) as refusal:
        check_queue("q", replace(QueueDescription(), **changes), LIMITS)
    assert refusal.value.status == 400
    assert refusal.value.text.startswith("Queue 'q': ")
    assert says in refusal.value.text


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (AuthorizationRule("", frozenset({Right.SEND}), "", ""), "KeyName ''"),
        (AuthorizationRule("a b", frozenset({Right.SEND}), "", ""), "KeyName 'a b'"),
        (AuthorizationRule("a&sig=x", frozenset({Right.SEND}), "", ""), "KeyName"),
        (AuthorizationRule("r", frozenset(), "", ""), "has no rights"),
        (AuthorizationRule("r", frozenset({Right.MANAGE, Right.SEND}), "", ""), "Manage needs both"),
        (
            AuthorizationRule("r", frozenset({Right.SEND}), "secret" * 50, ""),
            "a key of the authorization rule 'r'",
        ),
    ],
)
def test_authorization_rules(rule: AuthorizationRule, says: str) -> None:
    with pytest.raises(BusbarError) as refusal:
        check_queue("q", QueueDescription(authorization_rules=(rule,)), LIMITS)
    assert says in refusal.value.text
    assert "secret" not in refusal.value.text


def test_at_most_twelve_authorization_rules_and_none_twice() -> None:
    rules = tuple(AuthorizationRule(f"r{i}", frozenset({Right.LISTEN}), "", "") for i in range(13))
    check_topic("t", TopicDescription(authorization_rules=rules[:12]), LIMITS)
    with pytest.raises(ArgumentOutOfRange, match="has 13 authorization rules; at most 12"):
        check_topic("t", TopicDescription(authorization_rules=rules), LIMITS)
    with pytest.raises(ArgumentError, match="two authorization rules are called 'r0'"):
        check_topic("t", TopicDescription(authorization_rules=(rules[0], rules[0])), LIMITS)


def test_the_basic_tier_has_neither_topics_nor_sessions_nor_forwarding() -> None:
    check_queue("q", QueueDescription(), LIMITS, Tier.BASIC)
    for refused in (
        lambda: check_topic("t", TopicDescription(), LIMITS, Tier.BASIC),
        lambda: check_queue("q", QueueDescription(requires_session=True), LIMITS, Tier.BASIC),
        lambda: check_queue("q", QueueDescription(forward_to="x"), LIMITS, Tier.BASIC),
    ):
        with pytest.raises(InvalidOperation, match="Basic tier"):
            refused()


def test_premium_has_larger_messages_and_entities() -> None:
    large = QueueDescription(max_message_size=100 * 1024 * 1024, max_size_in_megabytes=81_920)
    assert check_queue("q", large, limits_of(Tier.PREMIUM), Tier.PREMIUM) == large
    with pytest.raises(ArgumentOutOfRange):
        check_queue("q", large, limits_of(Tier.STANDARD), Tier.STANDARD)
    assert limits_of(Tier.BASIC) == limits_of(Tier.STANDARD) == Limits()


def test_premium_has_no_express_entities() -> None:
    for refused in (
        lambda: check_queue(
            "q", QueueDescription(enable_express=True), limits_of(Tier.PREMIUM), Tier.PREMIUM
        ),
        lambda: check_topic(
            "t", TopicDescription(enable_express=True), limits_of(Tier.PREMIUM), Tier.PREMIUM
        ),
    ):
        with pytest.raises(InvalidOperation, match="Premium tier has no express"):
            refused()
    for tier in (Tier.BASIC, Tier.STANDARD):
        express = QueueDescription(enable_express=True)
        assert check_queue("q", express, LIMITS, tier) == express


def test_states_of_topics_and_subscriptions() -> None:
    for status in EntityStatus:
        topic = status is not EntityStatus.RECEIVE_DISABLED
        subscription = status is not EntityStatus.SEND_DISABLED
        _check(topic, lambda s=status: check_topic("t", TopicDescription(status=s), LIMITS))
        _check(
            subscription, lambda s=status: check_subscription("s", SubscriptionDescription(status=s), LIMITS)
        )


def _check(allowed: bool, check: Any) -> None:
    if allowed:
        check()
    else:
        with pytest.raises(ArgumentError, match="Status is"):
            check()


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (RuleDescription(SqlFilter(" ")), "the filter's SqlExpression is empty"),
        (RuleDescription(SqlFilter("x" * 1025)), "has 1025 characters; at most 1024"),
        (RuleDescription(action=SqlAction("")), "the action's SqlExpression is empty"),
        (RuleDescription(SqlFilter("a", (("@a", 1), ("@a", 2)))), "the same name twice"),
        (RuleDescription(SqlFilter("a", (("@a", float("nan")),))), "'@a' is nan"),
        (RuleDescription(CorrelationFilter(properties=(("n", 2**63),))), "'n' is 9223372036854775808"),
    ],
)
def test_rules(rule: RuleDescription, says: str) -> None:
    with pytest.raises(BusbarError) as refusal:
        check_rule("t/Subscriptions/s/Rules/r", rule, LIMITS)
    assert says in refusal.value.text


@pytest.mark.parametrize(
    "path",
    [
        "localhost",
        "LocalHost",
        "localhost/orders",
        "127.0.0.1",
        "10.1.2.3/orders",
        "x.servicebus.windows.net",
    ],
)
def test_a_name_that_a_token_would_mean_as_a_host_is_refused(path: str) -> None:
    with pytest.raises(ArgumentError, match="means as the host of the namespace"):
        check_path(path, LIMITS)


@pytest.mark.parametrize("path", ["localhost.1", "orders/localhost", "10.1.2", "servicebus.windows.net.x"])
def test_a_name_that_only_resembles_a_host_is_taken(path: str) -> None:
    assert check_path(path, LIMITS) == path
