from __future__ import annotations

import pytest

from busbar.gateway.http.atom_path import ManagementPath, ManagementPathKind, read_target
from busbar.gateway.http.atom_values import NEWEST, check_partitioning, is_partitioned, read_version
from busbar.model.entities import EntityKind, QueueDescription, TopicDescription
from busbar.model.errors import ArgumentError, EntityNotFound


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("", ManagementPath(ManagementPathKind.ROOT, "")),
        ("$NamespaceInfo", ManagementPath(ManagementPathKind.NAMESPACE, "$namespaceinfo")),
        ("$resources/queues", ManagementPath(ManagementPathKind.LIST, "$Resources/Queues", EntityKind.QUEUE)),
        ("$Resources/Topics", ManagementPath(ManagementPathKind.LIST, "$Resources/Topics", EntityKind.TOPIC)),
        ("orders", ManagementPath(ManagementPathKind.ENTITY, "orders")),
        ("eu/Orders", ManagementPath(ManagementPathKind.ENTITY, "eu/Orders")),
        (
            "t/subscriptions",
            ManagementPath(ManagementPathKind.LIST, "t/Subscriptions", EntityKind.SUBSCRIPTION, "t"),
        ),
        (
            "a/t/SUBSCRIPTIONS/s",
            ManagementPath(ManagementPathKind.ENTITY, "a/t/Subscriptions/s", EntityKind.SUBSCRIPTION, "a/t"),
        ),
        (
            "t/subscriptions/s/rules",
            ManagementPath(
                ManagementPathKind.LIST, "t/Subscriptions/s/Rules", EntityKind.RULE, "t/Subscriptions/s"
            ),
        ),
        (
            "a/t/subscriptions/s/rules/$Default",
            ManagementPath(
                ManagementPathKind.ENTITY,
                "a/t/Subscriptions/s/Rules/$Default",
                EntityKind.RULE,
                "a/t/Subscriptions/s",
            ),
        ),
        # The words are names where nothing stands before them.
        ("subscriptions", ManagementPath(ManagementPathKind.ENTITY, "subscriptions")),
        ("rules", ManagementPath(ManagementPathKind.ENTITY, "rules")),
        ("a/rules", ManagementPath(ManagementPathKind.ENTITY, "a/rules")),
        (
            "t/subscriptions/rules",
            ManagementPath(ManagementPathKind.ENTITY, "t/Subscriptions/rules", EntityKind.SUBSCRIPTION, "t"),
        ),
    ],
)
def test_what_a_path_means(path: str, target: ManagementPath) -> None:
    assert read_target(path) == target


@pytest.mark.parametrize("path", ["$Resources", "$Resources/Rules", "$cbs", "$namespaceinfo/x", "$"])
def test_other_words_with_a_dollar_name_nothing(path: str) -> None:
    with pytest.raises(EntityNotFound):
        read_target(path)


@pytest.mark.parametrize(
    ("path", "topic"),
    [("q", ""), ("$Resources/Topics", ""), ("a/t/subscriptions", "a/t"), ("t/subscriptions/s/rules/r", "t")],
)
def test_the_topic_of_a_target(path: str, topic: str) -> None:
    assert read_target(path).topic == topic


def test_versions_are_months_and_the_newest_is_meant_if_there_is_none() -> None:
    assert read_version(None) == read_version("") == NEWEST
    assert read_version("2017-04") == "2017-04"
    assert read_version("2015-08-Preview") == "2015-08-preview"
    for text in ("latest", "2021", "2021-5", "2021-05'", "２０２１-05"):
        with pytest.raises(ArgumentError, match="is not a month"):
            read_version(text)


@pytest.mark.parametrize("version", ["2010-10", "2012-08", "2013-07", "2013-09"])
def test_older_versions_do_not_know_partitioned_entities(version: str) -> None:
    with pytest.raises(ArgumentError, match="use 2013-10 or later"):
        check_partitioning("q", True, version)
    check_partitioning("q", True, "2013-10")
    check_partitioning("q", False, version)


def test_what_is_partitioned_says_so() -> None:
    assert is_partitioned(QueueDescription(enable_partitioning=True))
    assert is_partitioned(TopicDescription(enable_partitioning=True))
    assert not is_partitioned(QueueDescription())
