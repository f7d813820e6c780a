"""Settings of fragments on their way to a broker process."""

from __future__ import annotations

from busbar.cluster.settings_codec import SettingsReader, encode_settings
from busbar.model.entities import CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from busbar.model.settings import (
    TARGET_DISABLED,
    TARGET_MISSING,
    ForwardSettings,
    FragmentSettings,
    TapSettings,
)
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings

FIELDS = [
    "lock_ms",
    "max_deliveries",
    "ttl_ms",
    "dead_letter_on_expiration",
    "quota_bytes",
    "can_send",
    "can_receive",
    "duplicate_window_ms",
    "requires_session",
    "topic",
    "only_selected",
    "path",
    "transfer_patience_ms",
    "max_message_bytes",
    "max_header_bytes",
]
FORWARD_FIELDS = ["path", "fragments", "detects_duplicates", "index", "takes"]
TAP_FIELDS = [
    "id",
    "name",
    "sub",
    "events",
    "consumes",
    "start",
    "owner",
    "max_age_ms",
    "max_bytes",
    "lease_ms",
]


def test_every_field_crosses() -> None:
    tap = TapSettings(7, "tap", 1, True, True, 1, "owner", 11, 12, 13)
    to, dead_to = (
        ForwardSettings("to", [31, 32], True, 33, TARGET_DISABLED),
        ForwardSettings("dead", [], takes=TARGET_MISSING),
    )
    sent = FragmentSettings(
        21, 22, 23, True, 24, False, True, 25, True, [tap], None, True, "path", to, dead_to, 26, 27, 28
    )
    (fragment, got), *rest = SettingsReader().read(encode_settings({5: sent})).items()
    assert fragment == 5 and not rest
    assert [getattr(got, name) for name in FIELDS] == [getattr(sent, name) for name in FIELDS]
    assert [[getattr(one, name) for name in TAP_FIELDS] for one in got.taps] == [
        [getattr(tap, name) for name in TAP_FIELDS]
    ]
    for came, went in ((got.forward, to), (got.forward_dead_letters, dead_to)):
        assert [getattr(came, name) for name in FORWARD_FIELDS] == [
            getattr(went, name) for name in FORWARD_FIELDS
        ]


def topic(*subscribers: RuleSet) -> dict[int, FragmentSettings]:
    found = {}
    rules = TopicRules(subscribers)
    for index in range(2):
        found[index + 1] = settings = FragmentSettings(1, 1, 1, True, 1, True, True)
        beside = tuple(10 * (place + 1) + index for place, _ in enumerate(subscribers))
        settings.topic = TopicSettings(index, beside, rules)
    return found


def crossed(reader: SettingsReader, *subscribers: RuleSet) -> list[TopicSettings]:
    found = [settings.topic for settings in reader.read(encode_settings(topic(*subscribers))).values()]
    return [one for one in found if one is not None]


def test_the_rules_of_a_topic_cross_and_those_that_are_known_are_kept() -> None:
    colour = CorrelationFilter(properties=(("colour", "red"), ("count", 3)))
    first = RuleSet((("red", RuleDescription(colour)), ("all", RuleDescription())), True)
    second = RuleSet((("sql", RuleDescription(SqlFilter("a = 1"), SqlAction("SET b = 2"))),), False)
    reader = SettingsReader()
    got = crossed(reader, first, second)
    assert [one.index for one in got] == [0, 1]
    assert [one.fragments for one in got] == [(10, 20), (11, 21)]
    assert got[0].rules is got[1].rules, "fragments of one topic share what is compiled"
    there = got[0].rules.subscriptions
    for ours, theirs in zip((first, second), there, strict=True):
        assert theirs.rules == ours.rules
        assert theirs.dead_letters_errors == ours.dead_letters_errors

    changed = RuleSet((("sql", RuleDescription(SqlFilter("a = 2"))),), False)
    again = crossed(reader, first, changed)[0].rules.subscriptions
    assert again[0] is there[0], "its rules need not be compiled again"
    assert again[1].rules == changed.rules
