"""The program of a soak: clients of all kinds in one process, asynchronous and blocking.

    python -m tests.durability.soak_client CONNECTION_STRING JOURNAL SEED SECONDS TIMEOUT [leak]

It prints "ready" when the load has begun. At the line "stop" of its input the senders end, as soon as there was enough of
each kind of load. At the line "close" everything is closed. The last line that it prints is a report. With "leak" it keeps
something of each message that it receives.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from busbar.client import MessagingFactory, Processor, Retry
from busbar.client.blocking_loop import loop_thread
from busbar.client.session_processor import SessionProcessor
from harness.serving import resident_bytes_of
from tests.durability import soak_workers as workers
from tests.durability.soak_blocking import BlockingClients
from tests.durability.soak_journal import DELETED, ORDERS, REPLIES, Journal
from tests.durability.soak_workers import CALL_SECONDS, PLAIN, SESSIONS, UNIQUE, Soak

PACE = 0.04
SAMPLES = 60
MEASURED = (PLAIN, UNIQUE, SESSIONS, ORDERS, REPLIES)
"""Where there must have been load, as the test checks."""
LOOP_THREAD = "busbar-client"
"""The thread of the blocking client's event loop. It is one for the process, and stays."""


class FaultHandler(logging.Handler):
    """Notes what event loops log as errors: exceptions that no call got, and tasks that were dropped."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.ERROR)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        self._journal.fault(f"logged: {self.format(record)}")


class SoakClients:
    """All clients of the program."""

    def __init__(self, soak: Soak, connection_string: str, timeout: float) -> None:
        retry = Retry(patience=20, first=0.05, longest=0.5)
        self._soak = soak
        self._factories = [
            MessagingFactory(connection_string, retry=retry, operation_timeout=timeout) for _ in range(4)
        ]
        self._blocking = BlockingClients(soak, connection_string, retry, timeout)
        self._senders: list[asyncio.Task[None]] = []
        self._receivers: list[asyncio.Task[None]] = []
        self._processors: list[Processor | SessionProcessor] = []

    async def start(self) -> None:
        soak = self._soak
        first, second, third, fourth = self._factories
        plain = first.message_sender(PLAIN)
        self._spawn_senders(
            *(workers.send(soak, plain, PLAIN) for _ in range(4)),
            workers.send_lists(soak, second.message_sender(PLAIN), PLAIN),
            *(
                workers.send(soak, second.message_sender(UNIQUE, resend_unanswered=True), UNIQUE)
                for _ in range(2)
            ),
            workers.send_lists(soak, third.message_sender(UNIQUE, resend_unanswered=True), UNIQUE),
            *(workers.send(soak, third.message_sender(SESSIONS), SESSIONS) for _ in range(2)),
            workers.send(soak, fourth.message_sender(DELETED), DELETED),
            workers.send(soak, fourth.message_sender(ORDERS), ORDERS),
        )
        self._receivers += [
            asyncio.create_task(work)
            for work in (
                workers.receive(soak, second.message_receiver(PLAIN, prefetch_count=50), PLAIN, slow=True),
                workers.receive(soak, third.message_receiver(UNIQUE), UNIQUE, slow=False),
                workers.receive(soak, workers.deleting_receiver(fourth), DELETED, slow=False),
                workers.work_on_sessions(soak, first),
                workers.work_in_transactions(soak, third),
                workers.work_in_transactions(soak, fourth),
            )
        ]
        on_error = workers.on_error_of(soak)
        self._processors = [
            first.processor(
                PLAIN,
                workers.handler_of(soak, PLAIN),
                on_error=on_error,
                max_concurrent_calls=8,
                prefetch_count=20,
            ),
            second.processor(
                REPLIES, workers.handler_of(soak, REPLIES), on_error=on_error, max_concurrent_calls=4
            ),
            fourth.session_processor(
                SESSIONS,
                workers.handler_of(soak, SESSIONS),
                on_error=on_error,
                max_concurrent_sessions=4,
                session_idle_timeout=0.5,
            ),
        ]
        for processor in self._processors:
            await processor.start()
        self._blocking.start()

    def _spawn_senders(self, *senders: Coroutine[Any, Any, None]) -> None:
        self._senders = [asyncio.create_task(sender) for sender in senders]

    async def stop_sending(self) -> None:
        self._soak.is_sending = False
        await asyncio.gather(*self._senders)

    async def close(self) -> None:
        soak = self._soak
        soak.is_running = False
        await asyncio.gather(*self._receivers)
        for processor in self._processors:
            await soak.call("close a processor", processor.close())
        for factory in self._factories:
            await soak.call("close a factory", factory.close())
        await asyncio.to_thread(self._blocking.close)


class Commands:
    """The lines of the program's input, without a thread that waits for them."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.close = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sys.stdin.fileno(), self._read)

    def _read(self) -> None:
        line = sys.stdin.readline().strip()
        if line in ("", "close"):
            self._loop.remove_reader(sys.stdin.fileno())
            self.close.set()
        if line in ("", "stop", "close"):
            self.stop.set()


async def sample_memory(journal: Journal, seconds: float) -> None:
    """Note the memory of this process again and again."""
    began, process = time.monotonic(), _own_process()
    while True:
        await asyncio.sleep(seconds / SAMPLES)
        gc.collect()
        journal.memory(time.monotonic() - began, resident_bytes_of(process), len(gc.get_objects()))


async def until_enough(journal: Journal, seconds: float) -> None:
    """Wait until each kind of load has done more than one thing a second: a busy machine takes longer for that."""
    began = time.monotonic()
    while any(journal.done[queue] <= seconds for queue in MEASURED):
        if time.monotonic() > began + CALL_SECONDS:
            return  # the test reports what is missing
        await asyncio.sleep(0.05)


def _own_process() -> int:
    return int(Path("/proc/self").readlink().name)


def _is_connection(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            return found.family == socket.AF_INET
    except OSError:
        return False  # no socket, or the list itself


def note_what_is_left(journal: Journal) -> None:
    """Note tasks, threads and connections of clients that are closed."""
    loop = loop_thread()._loop
    tasks = [*asyncio.all_tasks() - {asyncio.current_task()}, *asyncio.all_tasks(loop)]
    for task in tasks:
        journal.fault(f"a task is left: {task!r}")
    for descriptor in os.listdir("/proc/self/fd"):
        if _is_connection(int(descriptor)):
            journal.fault(f"a connection is left: descriptor {descriptor}")
    expected = {threading.main_thread().name, LOOP_THREAD}
    for thread in threading.enumerate():
        if thread.name not in expected and not thread.name.startswith("asyncio_"):
            journal.fault(f"a thread is left: {thread!r}")


async def run(arguments: list[str]) -> None:
    connection_string, path, seed, seconds, timeout = arguments[:5]
    journal = Journal(Path(path))
    for logger in ("asyncio", "concurrent.futures"):
        logging.getLogger(logger).addHandler(FaultHandler(journal))
    logging.getLogger("busbar").addHandler(
        logging.NullHandler()
    )  # errors of the blocking processor, which are expected
    soak = Soak(journal, int(seed), PACE)
    soak.leaks = "leak" in arguments[5:]
    commands = Commands()
    clients = SoakClients(soak, connection_string, float(timeout))
    await clients.start()
    print("ready", flush=True)
    sampling = asyncio.create_task(sample_memory(journal, float(seconds)))
    await commands.stop.wait()
    sampling.cancel()
    await until_enough(journal, float(seconds))
    await clients.stop_sending()
    print("stopped", flush=True)
    await commands.close.wait()
    await clients.close()
    await asyncio.sleep(0.5)  # what was closed ends in the next turns of its loop
    gc.collect()  # an exception that no call got is reported when it is collected
    note_what_is_left(journal)
    journal.close()
    slowest = {what: round(took, 2) for what, took in sorted(soak.slowest.items())}
    print(json.dumps({"errors": dict(sorted(soak.errors.items())), "slowest": slowest}), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
