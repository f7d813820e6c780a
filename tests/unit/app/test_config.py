"""The emulator's Config.json: what is read, what is warned about, and what is refused with which words."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.app.config import ConfigError, parse_config, read_config
from busbar.app.jsonc import JsonError, parse
from busbar.model.duration import read_duration
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
from busbar.model.limits import Limits, limits_of

EMULATOR = """\
{
  // the vendor's own sample, shortened
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": true,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }, /* a trailing comma follows */
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": { "DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": true },
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": { "LockDuration": "PT1M", "MaxDeliveryCount": 3 },
                "Rules": [
                  {
                    "Name": "by-property",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": { "ContentType": "application/text", "Properties": { "a": "1" } }
                    }
                  },
                  {
                    "Name": "by-sql",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": { "SqlExpression": "sys.MessageId = '// not a comment'" },
                      "Action": { "SqlExpression": "SET sys.To = 'Entity'" }
                    }
                  }
                ]
              }
            ]
          }
        ]
      }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


def queue(**properties: Any) -> str:
    body = {"Name": "q", "Properties": properties}
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [body]}]}})


def only_queue(text: str) -> QueueDescription:
    ((_, description),) = parse_config(text, "f").entities
    assert isinstance(description, QueueDescription)
    return description


def test_the_emulators_file_is_read() -> None:
    config = parse_config(EMULATOR, "Config.json")
    assert config.warnings == ()
    assert config.name == "sbemulatorns"
    assert config.limits == Limits()
    (name, first), (topic_name, topic), (path, subscription), by_property, by_sql = config.entities
    assert name == "queue.1"
    assert first == QueueDescription(
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live=3_600_000,
        duplicate_detection_history_time_window=20_000,
        max_delivery_count=3,
    )
    assert topic_name == "topic.1"
    assert isinstance(topic, TopicDescription)
    assert topic.requires_duplicate_detection
    assert path == "topic.1/Subscriptions/subscription.1"
    assert subscription == SubscriptionDescription(max_delivery_count=3)
    assert by_property == (
        "topic.1/Subscriptions/subscription.1/Rules/by-property",
        RuleDescription(CorrelationFilter(content_type="application/text", properties=(("a", "1"),))),
    )
    assert by_sql == (
        "topic.1/Subscriptions/subscription.1/Rules/by-sql",
        RuleDescription(SqlFilter("sys.MessageId = '// not a comment'"), SqlAction("SET sys.To = 'Entity'")),
    )


def test_the_packaged_sample_is_clean() -> None:
    text = resources.files("busbar.app").joinpath("sample", "Config.json").read_text("utf-8")
    config = parse_config(text, "sample")
    assert config.warnings == ()
    assert [name for name, _ in config.entities] == ["orders", "payments", "workflows", "replies", "queue.1"]


def test_the_emulators_limits_are_not_ours() -> None:
    assert (
        only_queue(queue(DefaultMessageTimeToLive="P30D", MaxDeliveryCount=2000)).max_delivery_count == 2000
    )


def test_all_properties_of_a_queue() -> None:
    read = only_queue(
        queue(
            LockDuration="PT5S",
            MaxSizeInMegabytes=5120,
            MaxMessageSizeInKilobytes=100,
            RequiresDuplicateDetection="true",
            RequiresSession=True,
            DefaultMessageTimeToLive="P10675199DT2H48M5.4775807S",
            EnableBatchedOperations=False,
            EnablePartitioning=True,
            AutoDeleteOnIdle="PT5M",
            Status="receivedisabled",
            ForwardDeadLetteredMessagesTo="y",
            UserMetadata="z",
        )
    )
    assert read == QueueDescription(
        lock_duration=5000,
        max_size_in_megabytes=5120,
        max_message_size=102_400,
        requires_duplicate_detection=True,
        requires_session=True,
        enable_batched_operations=False,
        enable_partitioning=True,
        auto_delete_on_idle=300_000,
        status=EntityStatus.RECEIVE_DISABLED,
        forward_dead_lettered_messages_to="y",
        user_metadata="z",
    )


def test_a_queue_that_forwards() -> None:
    assert only_queue(queue(EnableExpress=True, ForwardTo="x")) == QueueDescription(
        enable_express=True, forward_to="x"
    )


def test_the_tier_brings_its_limits_and_the_namespace_may_have_more_rules() -> None:
    ours = {
        "Tier": "premium",
        "Limits": {"max_entities": 7},
        "AuthorizationRules": [
            {"Name": "reader", "Rights": ["listen"], "PrimaryKey": "key-1", "SecondaryKey": "key-2"}
        ],
    }
    config = parse_config(json.dumps({"Busbar": ours}), "f")
    assert config.tier is Tier.PREMIUM
    assert config.limits == replace(limits_of(Tier.PREMIUM), max_entities=7)
    assert config.rules == (AuthorizationRule("reader", frozenset([Right.LISTEN]), "key-1", "key-2"),)
    assert "key-1" not in repr(config)


def test_keys_are_read_in_any_case() -> None:
    text = (
        queue(LockDuration="PT30S")
        .replace("LockDuration", "lockDuration")
        .replace("UserConfig", "userConfig")
    )
    assert only_queue(text).lock_duration == 30_000
    assert parse_config(text, "f").warnings == ()


def test_unknown_keys_are_warnings_that_name_them() -> None:
    text = queue(LockDurations="PT1M").replace('{"UserConfig"', '{"Extra": 1, "UserConfig"')
    assert parse_config(text, "my.json").warnings == (
        "my.json: Extra is not known here and is ignored.",
        "my.json: UserConfig.Namespaces[0].Queues[0].Properties.LockDurations is not known here and is ignored.",
    )


def test_limits_can_be_lowered() -> None:
    text = '{"Busbar": {"Limits": {"min_lock_duration": 100}}, ' + queue(LockDuration="PT0.2S")[1:]
    config = parse_config(text, "f")
    assert config.limits == Limits(min_lock_duration=100)
    ((_, description),) = config.entities
    assert isinstance(description, QueueDescription)
    assert description.lock_duration == 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "f: this is not JSON: line 1"),
        ('{\n"a": /* never ends', "f: this is not JSON: line 2: the comment that starts here has no end"),
        ("[]", "f: the file is []; it must be an object {...}."),
        ('{"UserConfig": 5}', "f: UserConfig is 5; it must be an object"),
        ('{"UserConfig": {"Namespaces": {}}}', "f: UserConfig.Namespaces is {}; it must be an array [...]."),
        ('{"UserConfig": {"Namespaces": [{}, {}]}}', "2 elements; a broker serves one namespace"),
        (
            queue(LockDuration="1m"),
            "Queues[0].Properties.LockDuration is '1m'; it must be an ISO 8601 duration",
        ),
        (queue(LockDuration=60), "Properties.LockDuration is 60; it must be an ISO 8601 duration"),
        (queue(LockDuration="PT4S"), "Queues[0]: Queue 'q': LockDuration is 4 s; 5 s to 300 s are allowed."),
        (queue(MaxDeliveryCount=0), "MaxDeliveryCount is 0; at least 1 is needed"),
        (queue(MaxDeliveryCount=1.5), "MaxDeliveryCount is 1.5; it must be a whole number"),
        (queue(RequiresSession="yes"), "RequiresSession is 'yes'; it must be true or false"),
        (queue(Status="Open"), "Status is 'Open'; it must be one of Active, Disabled"),
        (queue().replace('"q"', '"a b"'), "Queues[0].Name: The entity name 'a b' has the character ' '"),
        (queue().replace('"q"', "null"), "Queues[0].Name: The entity name '' has 0 characters"),
        ('{"Busbar": {"Tier": "Gold"}}', "Busbar.Tier is 'Gold'; it must be one of Basic, Standard, Premium"),
        (
            '{"Busbar": {"AuthorizationRules": [{"Name": "r", "Rights": ["Manage"], "PrimaryKey": "k"}]}}',
            "has Manage without Send and Listen",
        ),
        (
            '{"Busbar": {"AuthorizationRules": [{"Name": "r"}]}}',
            "the authorization rule 'r' has no rights",
        ),
        (
            '{"Busbar": {"Tier": "Basic"}, ' + queue(RequiresSession=True)[1:],
            "RequiresSession is true; the Basic tier has no message sessions",
        ),
        ('{"Busbar": {"Limits": {"lock": 1}}}', "Busbar.Limits.lock is 1; there is no such limit; there are"),
        (
            '{"Busbar": {"Limits": {"max_peek_count": "x"}}}',
            "max_peek_count is 'x'; it must be a whole number",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_place_and_its_rule(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(text, "f")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_name_in_two_spellings_is_refused() -> None:
    both = {"UserConfig": {"Namespaces": [{"Queues": [{"Name": "Orders"}], "Topics": [{"Name": "orders"}]}]}}
    with pytest.raises(ConfigError, match="'Orders' and 'orders' are the same name"):
        parse_config(json.dumps(both), "f")


def test_a_bad_filter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Rules\[1\].Properties.FilterType is 'Lua'"):
        parse_config(EMULATOR.replace('"Sql"', '"Lua"'), "f")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json cannot be read"):
        read_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1S", 1000),
        ("PT0.25S", 250),
        ("PT0.0000001S", 1),
        ("PT1M", 60_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("P2W", 1_209_600_000),
        ("P10675199DT2H48M5.4775807S", 0),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert read_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1", "1S", "PT1", "-PT1S", "PT1.S", "P1S", "PT0S", "PT1S ", "P1DT"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="it must be"):
        read_duration(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_json_with_comments_is_the_same_json(value: Any) -> None:
    """Whatever stands in strings, comments between the tokens change nothing."""
    text = json.dumps(value, indent=1)
    lines = [f"{line} // a 'comment', with \"quotes\" ]" for line in text.split("\n")]
    assert parse("/* , } */" + "\n".join(lines)) == value


@given(st.text())
def test_any_text_is_json_or_an_error(text: str) -> None:
    try:
        parse(text)
    except JsonError:
        pass
    try:
        parse_config(text, "f")
    except ConfigError:
        pass


@given(json_values)
def test_any_json_is_a_configuration_or_an_error(value: Any) -> None:
    for wrapped in (value, {"UserConfig": value}, {"UserConfig": {"Namespaces": [{"Queues": value}]}}):
        try:
            parse_config(json.dumps(wrapped), "f")
        except ConfigError:
            pass
