"""Settings of fragments on their way to a broker process."""

from __future__ import annotations

from busbar.cluster.settings_codec import SettingsReader, encode_settings
from busbar.model.entities import CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from busbar.model.settings import FragmentSettings, TapSettings
from busbar.rules.selection import SubscriptionRules, TopicSelector

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
    "distributor",
    "only_selected",
]
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
    sent = FragmentSettings(21, 22, 23, True, 24, False, True, 25, True, [tap], None, True)
    (fragment, got), *rest = SettingsReader().read(encode_settings({5: sent})).items()
    assert fragment == 5 and not rest
    assert [getattr(got, name) for name in FIELDS] == [getattr(sent, name) for name in FIELDS]
    assert [[getattr(one, name) for name in TAP_FIELDS] for one in got.taps] == [
        [getattr(tap, name) for name in TAP_FIELDS]
    ]


def topic(*subscribers: SubscriptionRules) -> dict[int, FragmentSettings]:
    found = {}
    for index in range(2):
        found[index + 1] = settings = FragmentSettings(1, 1, 1, True, 1, True, True)
        beside = [(10 * (place + 1) + index, one) for place, one in enumerate(subscribers)]
        settings.distributor = TopicSelector(index, beside)
    return found


def test_the_rules_of_a_topic_cross_and_those_that_are_known_are_kept() -> None:
    colour = CorrelationFilter(properties=(("colour", "red"), ("count", 3)))
    first = SubscriptionRules([("red", RuleDescription(colour)), ("all", RuleDescription())], True)
    second = SubscriptionRules([("sql", RuleDescription(SqlFilter("a = 1"), SqlAction("SET b = 2")))], False)
    reader = SettingsReader()
    got = [settings.distributor for settings in reader.read(encode_settings(topic(first, second))).values()]
    assert isinstance(got[0], TopicSelector) and isinstance(got[1], TopicSelector)
    assert [one.index for one in got if isinstance(one, TopicSelector)] == [0, 1]
    assert (got[0].fragments, got[1].fragments) == ([10, 20], [11, 21])
    there = [one for _, one in got[0].subscribers]
    assert [one for _, one in got[1].subscribers] == there, "fragments of one topic share what is compiled"
    for ours, theirs in zip((first, second), there, strict=True):
        assert theirs.descriptions == ours.descriptions
        assert theirs.dead_letters_errors == ours.dead_letters_errors

    changed = SubscriptionRules([("sql", RuleDescription(SqlFilter("a = 2")))], False)
    again = reader.read(encode_settings(topic(first, changed)))[1].distributor
    assert isinstance(again, TopicSelector)
    assert again.subscribers[0][1] is there[0], "its rules need not be compiled again"
    assert again.subscribers[1][1].descriptions == changed.descriptions
