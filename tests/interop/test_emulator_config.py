"""Entities from the Config.json of the vendor's emulator: its own sample file, comments and all, as clients find it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter

from harness.serving import Busbar
from tests.interop.administration import Administration
from tests.interop.azure_sdk import Azure, Farewells, nothing_left, take_one, text_of

CONFIG = """\
// what the emulator is started with
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": true, /* a message that comes twice counts once */
              "RequiresSession": false
            }
          },
          { "Name": "bare" },
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": { "DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": false },
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": { "LockDuration": "PT2M", "MaxDeliveryCount": 5 },
                "Rules": [
                  {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": { "ContentType": "application/text", "MessageId": "msgid1" }
                    }
                  },
                  {
                    "Name": "sql-filter",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": { "SqlExpression": "sys.MessageId = '// not a comment'" }
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

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(60),
    pytest.mark.req("U3"),
    pytest.mark.server(config=CONFIG),
]


@pytest_asyncio.fixture(loop_scope="session")
async def admin(server: Busbar) -> AsyncIterator[Administration]:
    client = Administration(server, asynchronous=True)
    yield client
    await client.close()


async def test_what_the_file_says_is_what_administrators_see(admin: Administration) -> None:
    assert [queue.name for queue in await admin.list_queues()] == ["bare", "queue.1"]
    queue = await admin.get_queue("queue.1")
    assert queue.default_message_time_to_live == timedelta(hours=1)
    assert queue.duplicate_detection_history_time_window == timedelta(seconds=20)
    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.max_delivery_count == 3
    assert queue.requires_duplicate_detection is True
    assert queue.dead_lettering_on_message_expiration is False
    assert queue.requires_session is False
    assert not queue.forward_to and not queue.forward_dead_lettered_messages_to
    bare = await admin.get_queue("bare")
    assert (bare.lock_duration, bare.max_delivery_count) == (timedelta(minutes=1), 10)

    (topic,) = await admin.list_topics()
    assert (topic.name, topic.default_message_time_to_live) == ("topic.1", timedelta(hours=1))
    (subscription,) = await admin.list_subscriptions("topic.1")
    assert (subscription.lock_duration, subscription.max_delivery_count) == (timedelta(minutes=2), 5)
    rules = {rule.name: rule.filter for rule in await admin.list_rules("topic.1", "subscription.1")}
    assert set(rules) == {"app-prop-filter-1", "sql-filter"}
    correlation, sql = rules["app-prop-filter-1"], rules["sql-filter"]
    assert isinstance(correlation, CorrelationRuleFilter)
    assert (correlation.content_type, correlation.message_id) == ("application/text", "msgid1")
    assert isinstance(sql, SqlRuleFilter)
    assert sql.sql_expression == "sys.MessageId = '// not a comment'"


async def test_what_the_file_says_is_what_happens(server: Busbar, farewells: Farewells) -> None:
    """Three tries, as it says, then the dead-letter queue."""
    azure = Azure(server.connection_string, farewells, asynchronous=True)
    await azure.send("queue.1", "three tries")
    receiver = azure.receiver("queue.1")
    for tried in range(3):
        message = await take_one(receiver)
        assert (message.delivery_count, message.time_to_live) == (tried, timedelta(hours=1))
        await receiver.abandon_message(message)
    assert await nothing_left(receiver)
    assert text_of(await take_one(azure.dead_letters("queue.1"))) == "three tries"
    azure.leave()
