"""The client without await has the calls of the client with it, with the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from busbar.client import (
    AdministrationClient,
    BlockingAdministrationClient,
    ClientTransaction,
    MessageReceiver,
    MessageSender,
    MessagingFactory,
    Processor,
    QueueClient,
    Receiver,
    Sender,
    SessionProcessor,
    SessionReceiver,
    Taps,
)
from busbar.client.blocking import BlockingFactory, BlockingReceiver, BlockingSender, BlockingTaps
from busbar.client.blocking_messages import (
    BlockingMessageReceiver,
    BlockingMessageSender,
    BlockingProcessor,
    BlockingQueueClient,
    BlockingSessionReceiver,
)
from busbar.client.blocking_transaction import BlockingTransaction

WITHIN = {
    "attached", "begin_handling", "check_lock", "complete_at_once", "connection", "connection_for", "coordinator",
    "end_handling", "node", "send_at_once", "settling", "state", "step", "stop_loops", "stop_prefetching", "transmit",
}  # fmt: skip
"""Calls that parts of the client make of each other."""
AWAITED_ONLY = {
    "processor": {"on_error", "auto_complete"},
    "session_processor": {"on_error", "auto_complete"},
}
"""Arguments for handlers that get more than a message. A blocking handler gets the message alone."""

FACES: list[tuple[type[Any], type[Any]]] = [
    (MessagingFactory, BlockingFactory),
    (QueueClient, BlockingQueueClient),
    (MessageSender, BlockingMessageSender),
    (MessageReceiver, BlockingMessageReceiver),
    (SessionReceiver, BlockingSessionReceiver),
    (Sender, BlockingSender),
    (Receiver, BlockingReceiver),
    (Taps, BlockingTaps),
    (Processor, BlockingProcessor),
    (SessionProcessor, BlockingProcessor),
    (ClientTransaction, BlockingTransaction),
    (AdministrationClient, BlockingAdministrationClient),
]


def calls(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {name: value for name, value in found.items() if inspect.isfunction(value) and name not in WITHIN}


def arguments(call: Callable[..., Any]) -> dict[str, tuple[object, object, str]]:
    """How each argument is passed, its default, and its type as it is with await."""
    return {
        name: (one.kind, one.default, str(one.annotation).replace("Blocking", "").replace("Client", ""))
        for name, one in inspect.signature(call).parameters.items()
    }


@pytest.mark.parametrize(("awaited", "blocking"), FACES)
def test_both_faces_have_the_same_calls(awaited: type[Any], blocking: type[Any]) -> None:
    there, here = calls(awaited), calls(blocking)
    assert set(here) == set(there)
    for name, call in there.items():
        wanted = arguments(call)
        for left_out in AWAITED_ONLY.get(name, ()):
            del wanted[left_out]
        assert arguments(here[name]) == wanted, name
        assert list(arguments(here[name])) == list(wanted), f"the order of the arguments of {name}"
