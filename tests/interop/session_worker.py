"""A worker in a process of its own: accepts sessions as they come, completes their messages, and prints what it did.

python -m tests.interop.session_worker CONNECTION_STRING QUEUE
"""

from __future__ import annotations

import json
import sys

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError


def main() -> None:
    connection, queue = sys.argv[1:]
    with ServiceBusClient.from_connection_string(connection, retry_total=0) as client:
        while True:
            receiver = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1.5)
            try:
                with receiver:
                    got = receiver.receive_messages(max_message_count=100, max_wait_time=1)
                    for message in got:
                        receiver.complete_message(message)
                    print(json.dumps([receiver.session.session_id, [str(each) for each in got]]), flush=True)
            except OperationTimeoutError:
                return


if __name__ == "__main__":
    main()
