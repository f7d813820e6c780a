"""What the clients of a soak were told about each message, as lines of a file, and what must hold for it.

The clients write and keep nothing but counts, so that their memory is flat. The test reads the file at the end. Promises:

1. A message whose send was acknowledged is received. One whose send has an unknown outcome may be. One that was certainly
   not stored never is.
2. A send is stored once. So a message id has one sequence number, also if the client repeats a send to an entity that
   detects duplicates.
3. A completion is confirmed once for each message.
4. A message that is received and deleted comes once.
5. A transaction completes an order and sends its reply. A committed one does both, one in doubt both or none, every other
   one none. So an order gets one reply.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SENT, RECEIVED, COMPLETED, DISCHARGED, FAULT, MEMORY = "S", "R", "C", "T", "F", "M"
ACKNOWLEDGED, UNKNOWN, REFUSED = "acknowledged", "unknown", "refused"
COMMITTED, IN_DOUBT, ROLLED_BACK = "committed", "in doubt", "rolled back"

ORDERS, REPLIES, DELETED = "orders", "replies", "deleted"


class Journal:
    """The file that clients write, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self.done: Counter[str] = Counter()
        """How many completions of each queue, and how many transactions on orders, have ended."""
        self._lock = threading.Lock()

    def _write(self, *fields: object, done: str = "") -> None:
        line = "\t".join(map(str, fields)) + "\n"
        with self._lock:
            self._file.write(line)
            self.done[done] += 1

    def sent(self, queue: str, message: str, outcome: str) -> None:
        self._write(SENT, queue, message, outcome)

    def received(self, queue: str, message: object, number: int) -> None:
        self._write(RECEIVED, queue, message, number)

    def completed(self, queue: str, number: int) -> None:
        """Note a completion that the broker has confirmed."""
        self._write(COMPLETED, queue, number, done=queue)

    def discharged(self, order: str, reply: str, outcome: str) -> None:
        self._write(DISCHARGED, order, reply, outcome, done=ORDERS)

    def fault(self, text: str) -> None:
        """Note what must not happen."""
        self._write(FAULT, text.replace("\n", " | "))

    def memory(self, seconds: float, resident: int, objects: int) -> None:
        self._write(MEMORY, f"{seconds:.2f}", resident, objects)

    def close(self) -> None:
        self._file.close()


@dataclass(slots=True)
class QueueRecord:
    """What the journal has about the messages of one queue."""

    sends: dict[str, str] = field(default_factory=dict)
    numbers: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    received: Counter[str] = field(default_factory=Counter)
    completed: Counter[int] = field(default_factory=Counter)

    def outcomes(self) -> Counter[str]:
        return Counter(self.sends.values())


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The memory of a process so many seconds after the start of the load."""

    seconds: float
    resident: int
    objects: int = 0
    """What the garbage collector tracks, after a collection; 0 if it was not counted."""


class Ledger:
    """A journal, read."""

    def __init__(self, path: Path) -> None:
        self.queues: defaultdict[str, QueueRecord] = defaultdict(QueueRecord)
        self.transactions: dict[str, tuple[str, str]] = {}
        """The order and the outcome of each transaction, by the id of its reply."""
        self.memory: list[MemorySample] = []
        self.noted: list[str] = []
        with path.open() as lines:
            for line in lines:
                self._read(line.rstrip("\n").split("\t"))

    def _read(self, fields: list[str]) -> None:
        match fields:
            case [kind, queue, message, outcome] if kind == SENT:
                self.queues[queue].sends[message] = outcome
            case [kind, queue, message, number] if kind == RECEIVED:
                self.queues[queue].numbers[message].add(int(number))
                self.queues[queue].received[message] += 1
            case [kind, queue, number] if kind == COMPLETED:
                self.queues[queue].completed[int(number)] += 1
            case [kind, order, reply, outcome] if kind == DISCHARGED:
                self.transactions[reply] = (order, outcome)
            case [kind, text] if kind == FAULT:
                self.noted.append(text)
            case [kind, seconds, resident, objects] if kind == MEMORY:
                self.memory.append(MemorySample(float(seconds), int(resident), int(objects)))
            case _:
                raise ValueError(f"no line of a journal: {fields}")

    def faults(self) -> list[str]:
        """What contradicts the promises."""
        found = list(self.noted)
        for name, queue in self.queues.items():
            found += [f"{name}: {text}" for text in self._faults_of(name, queue)]
        return [*found, *self._faults_of_transactions()]

    def _faults_of(self, name: str, queue: QueueRecord) -> Iterator[str]:
        for message, outcome in queue.sends.items():
            was_received = message in queue.numbers
            if outcome == ACKNOWLEDGED and not was_received and name != DELETED:
                yield f"{message} was acknowledged and is lost"
            if outcome == REFUSED and was_received:
                yield f"{message} was certainly not stored, and was received"
        for message, numbers in queue.numbers.items():
            if message not in queue.sends and name != REPLIES:
                yield f"{message} was received and never sent"
            if len(numbers) > 1:
                yield f"{message} was stored {len(numbers)} times: {sorted(numbers)}"
        for number, count in queue.completed.items():
            if count > 1:
                yield f"number {number} was completed {count} times"
        if name == DELETED:
            yield from (
                f"{message} was received {count} times"
                for message, count in queue.received.items()
                if count > 1
            )

    def _faults_of_transactions(self) -> Iterator[str]:
        replies = self.queues[REPLIES].numbers
        answers: defaultdict[str, list[str]] = defaultdict(list)
        for reply, (order, outcome) in self.transactions.items():
            if reply in replies:
                answers[order].append(reply)
            if outcome == COMMITTED and reply not in replies:
                yield f"reply {reply} was committed and is lost"
            if outcome == ROLLED_BACK and reply in replies:
                yield f"reply {reply} was rolled back and is there"
        yield from (
            f"order {order} has the replies {found}" for order, found in answers.items() if len(found) > 1
        )
        yield from (f"reply {reply} was never sent" for reply in replies.keys() - self.transactions.keys())
        for order, outcome in self.queues[ORDERS].sends.items():
            if outcome == ACKNOWLEDGED and order not in answers:
                yield f"order {order} was acknowledged and has no reply"

    def summary(self) -> str:
        """The numbers of messages, a line for each queue."""
        lines = [
            f"{name}: sends {dict(queue.outcomes())}, received {len(queue.numbers)} ({queue.received.total()} times), "
            f"completed {len(queue.completed)}"
            for name, queue in sorted(self.queues.items())
        ]
        outcomes = Counter(outcome for _order, outcome in self.transactions.values())
        return "\n".join([*lines, f"transactions: {dict(outcomes)}"])
