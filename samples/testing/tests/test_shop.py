"""The shop, with a namespace of its own for each test."""

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from shop import order, ship

from busbar.testing import ServedNamespace


@pytest.fixture
def client(busbar_namespace: ServedNamespace) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(busbar_namespace.connection_string) as client:
        yield client


def test_an_order_is_shipped_and_announced(client: ServiceBusClient) -> None:
    order(client, 1, "tea")
    assert ship(client) == 1
    with client.get_subscription_receiver("shipped", "mail") as mail:
        (message,) = mail.receive_messages(max_message_count=10, max_wait_time=5)
    assert (str(message), message.correlation_id) == ("tea", "order-1")


def test_an_order_that_cannot_be_read_is_dead_lettered(client: ServiceBusClient) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("not an order"))
    assert ship(client) == 0
    with client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
        (message,) = dead_letters.receive_messages(max_message_count=10, max_wait_time=5)
    assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
