"""Ships orders: takes them from the queue `orders` and announces each on the topic `shipped`."""

import json

from azure.servicebus import ServiceBusClient, ServiceBusMessage


def order(client: ServiceBusClient, number: int, item: str) -> None:
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(json.dumps({"item": item}), message_id=f"order-{number}"))


def ship(client: ServiceBusClient) -> int:
    """Ship what is ordered; returns how many. An order that cannot be read is tried again, and then dead-lettered."""
    shipped = 0
    with (
        client.get_queue_receiver("orders") as receiver,
        client.get_topic_sender("shipped") as sender,
    ):
        while messages := receiver.receive_messages(max_message_count=10, max_wait_time=0.5):
            for message in messages:
                try:
                    item = json.loads(str(message))["item"]
                except (ValueError, KeyError):
                    receiver.abandon_message(message)
                    continue
                sender.send_messages(ServiceBusMessage(item, correlation_id=message.message_id))
                receiver.complete_message(message)
                shipped += 1
    return shipped
