"""The recorder of histories: only what is durable, found by message id, within its limit."""

from __future__ import annotations

from collections.abc import Callable

from busbar.broker.history import HistoryRecorder
from busbar.message.compose import compose
from busbar.message.parsing import parse_message
from busbar.model import effects as e
from busbar.model.commands import Send
from busbar.model.history import NAMES, HistoryRecording
from busbar.model.message import Draft
from harness.memory_store import Fault
from tests.unit.broker.hosting import complete, demand, hosting


class Source:
    """A dispatcher with one connection of another process, whose origin is 7."""

    def __init__(self) -> None:
        self.sink: Callable[[list[e.Effect]], None] | None = None

    def connect_history(self, sink: Callable[[list[e.Effect]], None]) -> None:
        self.sink = sink

    def client_of(self, origin: int) -> tuple[str, int]:
        return ("there", 70) if origin == 7 else ("", origin)


def message(message_id: str) -> Draft:
    raw = compose(b"body", message_id=message_id)
    return parse_message(raw, 0, len(raw), "fresh", 128)


def step(n: int, what: int = e.SENT, by: int = 1, content: bytes | None = None) -> e.MessageStep:
    return e.MessageStep(n, what, 1_000 + n, 0, "", content, by, 0)


def happened(*steps: e.MessageStep, fragment: int = 1) -> list[e.Effect]:
    return [e.Happened(fragment, "q", list(steps))]


def test_steps_are_found_by_message_id() -> None:
    recorder = HistoryRecorder(Source())
    one, two = message("one").content, message("two").content
    recorder.record(happened(step(1, content=one), step(2, content=two)))
    recorder.record(
        happened(step(1, e.DELIVERED, 7, one), step(1, e.LOCK_LOST, 7), step(1, e.EXPIRED, 0, one))
    )
    recorder.record(happened(step(1, e.COMPLETED), fragment=9))  # of a message that is not known
    found = recorder.steps_of("one")
    assert [(one.what, one.gateway, one.origin, one.number) for one in found] == [
        ("sent", "", 1, 1),
        ("delivered", "there", 70, 1),
        ("lock lost", "there", 70, 1),
        ("expired", "", 0, 1),
    ]
    assert [one.what for one in recorder.steps_of("two")] == ["sent"]
    assert recorder.steps_of("three") == [] and recorder.count == 5


def test_the_oldest_steps_are_forgotten() -> None:
    recorder = HistoryRecorder(Source(), limit=10)
    for number in range(100):
        content = message(f"m{number}").content
        recorder.record(happened(step(number + 1, content=content), step(number + 1, e.COMPLETED)))
        assert recorder.count <= 10
    assert recorder.steps_of("m0") == [] and len(recorder.steps_of("m99")) == 2
    assert [len(recorder.steps_of(f"m{number}")) for number in range(94, 100)] == [0, 2, 2, 2, 2, 2]
    assert len(recorder._by_id) == len(recorder._ids) == 5
    recorder.record(happened(step(1, e.COMPLETED)))  # its send is forgotten, and its id with it
    assert recorder.steps_of("m0") == []


def test_a_number_that_comes_again_has_the_id_of_its_new_message() -> None:
    recorder = HistoryRecorder(Source())
    recorder.record(happened(step(1, content=message("old").content)))
    recorder.record(happened(step(1, content=message("new").content), step(1, e.COMPLETED)))
    assert [one.what for one in recorder.steps_of("old")] == ["sent"]
    assert [one.what for one in recorder.steps_of("new")] == ["sent", "completed"]


def test_every_step_has_a_name() -> None:
    steps = {
        e.DUPLICATE_DROPPED,
        e.FORWARDED,
        *range(e.COMPLETED, e.FORWARDED + 1),
        *range(e.SENT, e.SENT_VIA + 1),
    }
    assert set(NAMES) == steps and len(set(NAMES.values())) == len(NAMES)


async def test_a_step_of_a_commit_that_failed_never_appears() -> None:
    async with hosting() as here:
        recorder = HistoryRecorder(Source())
        recorder.set_recording(HistoryRecording(True))
        here.host.commit_loop.slots[1].machine.history = recorder.switch

        def send(message_id: str, request: int) -> Send:
            return Send(1, 1, request, [message(message_id)], True)

        here.host.submit([send("kept", 1)])
        await here.sent(1)
        here.store.fail_next_commit(Fault.FULL)
        here.host.submit([send("lost", 2), demand(1, 2)])
        await here.refused(2)
        await here.serving()
        here.host.submit([send("later", 3)])
        await here.sent(3)
        await here.until(lambda: len(here.delivered()) == 2)
        here.host.submit([complete(here.all(e.Delivered)[0], 4)])
        await here.answer(4)
        recorder.record(here.said)
        assert [one.what for one in recorder.steps_of("kept")] == ["sent", "delivered", "completed"]
        assert recorder.steps_of("lost") == []
        assert [one.what for one in recorder.steps_of("later")] == ["sent", "delivered"]
