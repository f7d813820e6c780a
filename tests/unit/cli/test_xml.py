from __future__ import annotations

from xml.etree.ElementTree import Element

import pytest

from busbar.cli.entity_kinds import KINDS, QUEUE, SUBSCRIPTION, TOPIC, EntityCommandKind
from busbar.cli.entity_view import as_json, details, row
from busbar.client.administration_rules import (
    CorrelationRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
    read_rule,
    write_rule,
)
from busbar.client.administration_xml import (
    AtomContent,
    NotAtomReply,
    new_description,
    read_entry,
    read_error,
    read_feed,
    remove,
    set_text,
    text_of,
    write_entry,
)
from busbar.model.atom import local_name
from busbar.model.entities import TypedText

# As the service writes it: the description has a namespace of its own, the counts another.
QUEUE_ENTRY = b"""<entry xmlns="http://www.w3.org/2005/Atom"><id>http://h/a%2Fb</id><title type="text">a/b</title>
<link rel="self" href="http://h/a%2Fb"/><content type="application/xml">
<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    xmlns:i="http://www.w3.org/2001/XMLSchema-instance">
  <LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>
  <DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>
  <RequiresSession>true</RequiresSession><SizeInBytes>2048</SizeInBytes><MessageCount>7</MessageCount>
  <AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><Rights>
    <AccessRights>Send</AccessRights></Rights><KeyName>sender</KeyName><PrimaryKey>secret</PrimaryKey>
  </AuthorizationRule></AuthorizationRules><Status>Active</Status><FromTheFuture>x</FromTheFuture>
  <AccessedAt>0001-01-01T00:00:00Z</AccessedAt>
  <CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">
    <d2p1:ActiveMessageCount>4</d2p1:ActiveMessageCount><d2p1:DeadLetterMessageCount>3</d2p1:DeadLetterMessageCount>
    <d2p1:ScheduledMessageCount>0</d2p1:ScheduledMessageCount></CountDetails>
</QueueDescription></content></entry>"""


def parsed(body: bytes) -> AtomContent:
    entry = read_entry(body)
    assert entry is not None
    return entry


def test_a_queue_as_json() -> None:
    shown = as_json(QUEUE, parsed(QUEUE_ENTRY))
    assert shown["name"] == "a/b"
    assert shown["maxSizeInMegabytes"] == 1024
    assert shown["requiresSession"] is True
    assert shown["defaultMessageTimeToLive"] == "P10675199DT2H48M5.4775807S"
    assert shown["forwardTo"] is None
    assert shown["countDetails"] == {
        "activeMessageCount": 4,
        "deadLetterMessageCount": 3,
        "scheduledMessageCount": 0,
        "transferMessageCount": 0,
        "transferDeadLetterMessageCount": 0,
    }
    assert shown["authorizationRules"] == [{"keyName": "sender", "rights": ["Send"]}]
    assert "secret" not in str(shown)


def test_a_queue_for_people() -> None:
    entry = parsed(QUEUE_ENTRY)
    assert row(QUEUE, entry) == ("a/b", "Active", "4", "3", "2.0 KiB")
    settings, runtime = details(QUEUE, entry)
    assert settings["Default message time to live"] == "unlimited"
    assert settings["Authorization rules"] == "sender"
    assert runtime["Accessed at"] == "never"
    assert runtime["Size in bytes"] == "2.0 KiB"
    assert runtime["Dead letter message count"] == "3"
    assert "secret" not in str((settings, runtime))


def test_an_update_keeps_what_it_does_not_know_and_the_order() -> None:
    description = parsed(QUEUE_ENTRY).description
    set_text(description, "MaxDeliveryCount", "5", QUEUE.elements)
    set_text(description, "LockDuration", "PT30S", QUEUE.elements)
    set_text(description, "MaxMessageSizeInKilobytes", "512", QUEUE.elements)
    set_text(description, "Status", "", QUEUE.elements)
    again = parsed(write_entry(description)).description
    names = [local_name(element) for element in again]
    assert names[0] == "LockDuration"
    assert names[names.index("MaxDeliveryCount") + 1] == "SizeInBytes"
    assert names[-1] == "MaxMessageSizeInKilobytes"
    assert "Status" not in names
    assert text_of(again, "FromTheFuture") == "x"
    assert text_of(again, "LockDuration") == "PT30S"
    assert b"secret" in write_entry(description), "the access rules of the entity stay"


def test_markup_in_values_is_text() -> None:
    description = new_description("QueueDescription")
    set_text(description, "UserMetadata", "</QueueDescription><x a='&'>", QUEUE.elements)
    assert text_of(parsed(write_entry(description)).description, "UserMetadata") == (
        "</QueueDescription><x a='&'>"
    )


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_flag_sets_an_element_of_its_kind(kind: EntityCommandKind) -> None:
    flags = [flag for item in kind.properties for flag in item.flags]
    assert len(flags) == len(set(flags))
    assert {item.element for item in kind.properties} <= set(kind.elements)


def test_rows_of_topics_and_subscriptions() -> None:
    topic = new_description("TopicDescription")
    set_text(topic, "SubscriptionCount", "2", TOPIC.elements)
    set_text(topic, "Status", "Active", TOPIC.elements)
    assert row(TOPIC, AtomContent("t", topic)) == ("t", "Active", "2", "0", "0 B")
    assert row(SUBSCRIPTION, AtomContent("s", new_description("SubscriptionDescription"))) == (
        "s",
        "",
        "0",
        "0",
    )
    assert (
        as_json(SUBSCRIPTION, AtomContent("s", new_description("SubscriptionDescription")), "t")["topic"]
        == "t"
    )


def test_feeds() -> None:
    feed = b'<feed xmlns="http://www.w3.org/2005/Atom"><title>Queues</title>' + QUEUE_ENTRY * 2 + b"</feed>"
    assert [entry.name for entry in read_feed(feed)] == ["a/b", "a/b"]
    assert read_entry(b'<feed xmlns="http://www.w3.org/2005/Atom"/>') is None
    assert read_feed(b'<feed xmlns="http://www.w3.org/2005/Atom"/>') == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>hello",
        b"{}",
        b'<entry xmlns="http://www.w3.org/2005/Atom"/>',
        b'<!DOCTYPE entry [<!ENTITY a "b">]><entry>&a;</entry>',
    ],
)
def test_what_is_not_atom(body: bytes) -> None:
    with pytest.raises(NotAtomReply):
        read_entry(body)


def test_errors_are_shown_without_their_codes() -> None:
    body = b"<Error><Code>409</Code><Detail>SubCode=40900. Conflict.  It\nexists. TrackingId:1, Timestamp:2</Detail></Error>"
    assert read_error(body) == (40900, "Conflict. It exists.")
    assert read_error(b"<Error><Code>500</Code></Error>") == (0, "")
    assert read_error(b"nonsense") == (0, "")


@pytest.mark.parametrize(
    "rule",
    [
        RuleProperties("all", TrueRuleFilter()),
        RuleProperties("sql", SqlRuleFilter("a < 5 AND b = '&'"), SqlRuleAction("SET a = 1")),
        RuleProperties("parameters", SqlRuleFilter("a < @p", {"@p": TypedText("long", "5")})),
        RuleProperties(
            "equal",
            CorrelationRuleFilter(
                correlation_id="c",
                label="",
                content_type="t",
                properties={
                    "region": TypedText("string", "eu"),
                    "count": TypedText("int", "05"),
                    "when": TypedText("dateTime", "2020"),
                },
            ),
        ),
    ],
)
def test_rules_come_back_as_they_were_written(rule: RuleProperties) -> None:
    body = write_entry(write_rule(rule))
    assert read_rule(AtomContent(rule.name, parsed(body).description), typed=True) == rule
    assert b'i:type="' in body


def test_the_prefix_of_a_value_s_type_is_declared_where_it_is_used() -> None:
    rule = RuleProperties("r", CorrelationRuleFilter(properties={"n": 5}))
    body = write_entry(write_rule(rule)).decode()
    assert '<Value xmlns:d6p1="http://www.w3.org/2001/XMLSchema" i:type="d6p1:int">5</Value>' in body


def test_a_description_has_the_default_namespace() -> None:
    # `i:type="SqlFilter"` is a name in the namespace without a prefix.
    body = write_entry(write_rule(RuleProperties("r", SqlRuleFilter("1=1")))).decode()
    assert '<RuleDescription xmlns="http://schemas.microsoft.com' in body
    assert "ns0" not in body
    assert isinstance(parsed(body.encode()).description, Element)


def test_a_description_that_was_read_is_written_without_prefixes() -> None:
    described = parsed(QUEUE_ENTRY).description
    remove(described, "CountDetails")  # it has a namespace of its own, and is never sent
    body = write_entry(described)
    assert b'<AuthorizationRule i:type="SharedAccessAuthorizationRule">' in body
    assert b"<FromTheFuture>x</FromTheFuture>" in body and b"ns0" not in body
