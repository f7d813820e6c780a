"""Sends one message to the queue `orders` of a Busbar on this machine and takes it back. Start one with `make run`.

.venv/bin/python samples/first_message.py [CONNECTION_STRING]
"""

from __future__ import annotations

import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage

CONNECTION = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)


def main() -> None:
    connection = sys.argv[1] if len(sys.argv) > 1 else CONNECTION
    with ServiceBusClient.from_connection_string(connection) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("two coffees, one croissant"))
        with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            for message in receiver:
                print(message.sequence_number, str(message))
                receiver.complete_message(message)
                break


if __name__ == "__main__":
    main()
