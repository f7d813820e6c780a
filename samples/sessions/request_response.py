"""Request and response over two queues: each requester waits for its replies in a message session of its own.

Requests go to the queue `orders`, with the name of a session in ReplyToSessionId. The service answers to the session-aware
queue `replies`, with that name as SessionId. A requester accepts its session before it asks, so nobody else can take what
comes for it; any number of requesters share the two queues.

Start a Busbar with `make run`, then

.venv/bin/python samples/sessions/request_response.py [CONNECTION_STRING]
"""

from __future__ import annotations

import sys
import threading
import uuid

from azure.servicebus import ServiceBusClient, ServiceBusMessage

CONNECTION = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
REQUESTS, REPLIES = "orders", "replies"
REQUESTERS, QUESTIONS = 2, 3


def serve(connection: str, count: int) -> None:
    """Answer so many requests, each to where it wants its answer."""
    with (
        ServiceBusClient.from_connection_string(connection) as client,
        client.get_queue_receiver(REQUESTS, max_wait_time=30) as requests,
        client.get_queue_sender(REPLIES) as replies,
    ):
        for request in requests:
            if request.reply_to_session_id is not None:
                reply = ServiceBusMessage(
                    f"{request!s} is {eval_sum(str(request))}",
                    session_id=request.reply_to_session_id,
                    correlation_id=request.message_id,
                )
                replies.send_messages(reply)
                count -= 1
            requests.complete_message(request)
            if not count:
                return


def eval_sum(text: str) -> int:
    return sum(int(part) for part in text.split("+"))


def ask(connection: str, name: str) -> None:
    """Ask a few questions and print the answers."""
    session = f"{name}-{uuid.uuid4()}"
    with (
        ServiceBusClient.from_connection_string(connection) as client,
        client.get_queue_receiver(REPLIES, session_id=session) as replies,
        client.get_queue_sender(REQUESTS) as requests,
    ):
        for number in range(QUESTIONS):
            question = ServiceBusMessage(
                f"{number}+{len(name)}", reply_to=REPLIES, reply_to_session_id=session
            )
            requests.send_messages(question)
            (reply,) = replies.receive_messages(max_message_count=1, max_wait_time=30)
            print(f"{name}: {reply!s}", flush=True)
            replies.complete_message(reply)


def main() -> None:
    connection = sys.argv[1] if len(sys.argv) > 1 else CONNECTION
    parts = [threading.Thread(target=serve, args=(connection, REQUESTERS * QUESTIONS))]
    parts += [
        threading.Thread(target=ask, args=(connection, f"requester-{n + 1}")) for n in range(REQUESTERS)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()


if __name__ == "__main__":
    main()
