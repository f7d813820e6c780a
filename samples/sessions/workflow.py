"""A workflow for each order, first in, first out, whose worker can crash: the next one goes on where it stopped.

The steps of several orders are sent to the queue `workflows`, interleaved. A worker accepts one order (a message session) at
a time and does its steps in their order. What it has done is kept in the session's state, together with the messages in the
broker. A worker that is killed between two steps loses nothing: who accepts the session next reads the state and goes on.

Start a Busbar with `make run`, then

.venv/bin/python samples/sessions/workflow.py [CONNECTION_STRING]

This program starts two workers of its own, kills the first in the middle of an order, and shows what the second makes of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

CONNECTION = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
QUEUE = "workflows"
STEPS = ("reserve", "charge", "ship")
ORDERS = ("order-1", "order-2", "order-3")
CRASH_CODE = 17


def send(client: ServiceBusClient) -> None:
    """All orders at once, step by step."""
    with client.get_queue_sender(QUEUE) as sender:
        for step in STEPS:
            for order in ORDERS:
                sender.send_messages(ServiceBusMessage(step, session_id=order))


def work(client: ServiceBusClient, crash_after: int) -> None:
    """Do orders until there are none; crash in the middle of the step of that number (0: never)."""
    steps = 0
    while True:
        receiver = client.get_queue_receiver(QUEUE, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
        try:
            with receiver:
                session = receiver.session
                done = json.loads(session.get_state() or b"[]")
                for message in receiver:
                    step = str(message)
                    if step in done:
                        print(f"  {session.session_id}: {step} was done before", flush=True)
                    else:
                        print(f"  {session.session_id}: {step}", flush=True)
                        done.append(step)
                        session.set_state(json.dumps(done))
                    steps += 1
                    if steps == crash_after:
                        print("  the worker crashes", flush=True)
                        os._exit(CRASH_CODE)  # no goodbye: the connection just breaks
                    receiver.complete_message(message)
                    if done == list(STEPS):
                        print(f"  {session.session_id} is finished", flush=True)
                        session.set_state(None)
                        break
        except OperationTimeoutError:
            return  # no session has messages


def main() -> None:
    connection = sys.argv[1] if len(sys.argv) > 1 else CONNECTION
    if len(sys.argv) > 2:
        # Without retries: that no session is available is an answer, not a failure.
        with ServiceBusClient.from_connection_string(connection, retry_total=0) as client:
            work(client, int(sys.argv[2]))
        return
    with ServiceBusClient.from_connection_string(connection) as client:
        send(client)
    for crash_after in (5, 0):
        print(f"a worker{' that will crash' if crash_after else ''}:", flush=True)
        worker = subprocess.run([sys.executable, __file__, connection, str(crash_after)], check=False)
        if worker.returncode not in (0, CRASH_CODE):
            sys.exit(worker.returncode)


if __name__ == "__main__":
    main()
