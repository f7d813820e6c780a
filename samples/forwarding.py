"""Forwarding: messages of a queue, and of a subscription, arrive in another queue.

Start a Busbar with `make run`, then

.venv/bin/busbar queue create archive
.venv/bin/busbar queue create incoming --forward-to archive
.venv/bin/python samples/forwarding.py [CONNECTION_STRING]
"""

from __future__ import annotations

import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

CONNECTION = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
SOURCE, TARGET = "incoming", "archive"


def main(connection: str) -> None:
    with ServiceBusClient.from_connection_string(connection) as client:
        with client.get_queue_sender(SOURCE) as sender:
            sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(3)])
        with client.get_queue_receiver(TARGET, max_wait_time=10) as receiver:
            left = 3
            for message in receiver:
                print(f"{message!s}: number {message.enqueued_sequence_number} in {SOURCE}")
                receiver.complete_message(message)
                left -= 1
                if not left:
                    break


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else CONNECTION)
