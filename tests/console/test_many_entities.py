"""Ten thousand entities: a page shows fifty of a list, and costs the broker what it costs in a small namespace.

Nothing here is a time. The pages are compared with those of a namespace that just fills them: the number of their rows,
their bytes, and the requests that the console makes for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from busbar.client import blocking
from busbar.message.compose import compose
from harness.serving import Busbar, serving
from tests.console.console_process import ConsoleProcess, Visitor
from tests.console.request_counter import RequestCounter

pytestmark = pytest.mark.timeout(240)

ROWS = 50
LARGE, SMALL = 9_000, 60
TOPICS = 60
SUBSCRIPTIONS = {LARGE: 940, SMALL: 60}
"""Of the first topic. The large namespace has 10,000 entities."""
TAPS = 120


@dataclass(frozen=True)
class Looking:
    """A namespace, and somebody who looks at it."""

    server: Busbar
    counter: RequestCounter
    visitor: Visitor

    def page(self, path: str) -> tuple[str, list[str]]:
        """A page, and the requests that the console made for it. Those for the plots come by themselves, at any time."""
        del self.counter.seen[:]
        answer = self.visitor.get(path)
        assert answer.status == 200, answer.text
        return answer.text, sorted(one for one in self.counter.seen if one != "/metrics")


def look_at(stack: ExitStack, queues: int) -> Looking:
    subscriptions = [{"Name": f"sub-{n:03}", "Properties": {}} for n in range(SUBSCRIPTIONS[queues])]
    topics = [
        {"Name": f"topic-{n:02}", "Properties": {}, "Subscriptions": subscriptions if n == 0 else []}
        for n in range(TOPICS)
    ]
    names: dict[str, dict[str, object]] = {f"queue-{n:04}": {} for n in range(queues)}
    server = stack.enter_context(serving(names, topics=topics))
    counter = stack.enter_context(RequestCounter(server))
    console = ConsoleProcess(None, "--connection-string", counter.connection_string)
    stack.callback(console.stop)
    return Looking(server, counter, Visitor(console.port).signed_in(console.token))


@pytest.fixture(scope="module")
def looking() -> Iterator[dict[int, Looking]]:
    with ExitStack() as stack:
        yield {queues: look_at(stack, queues) for queues in (LARGE, SMALL)}


def rows(text: str) -> int:
    return sum(body.count("<tr>") for body in re.findall(r"<tbody>.*?</tbody>", text, re.DOTALL))


@pytest.mark.req("U27")
@pytest.mark.parametrize(
    ("path", "shown"),
    [("/", 2 * ROWS), ("/topic?name=topic-00", ROWS), ("/?search=00", None), ("/queue?name=queue-0007", 0)],
)
def test_a_page_costs_what_it_costs_in_a_small_namespace(
    looking: dict[int, Looking], path: str, shown: int | None
) -> None:
    large, asked = looking[LARGE].page(path)
    small, asked_there = looking[SMALL].page(path)
    assert asked == asked_there and len(asked) <= 4
    assert "AMQP" not in asked
    if shown is None:
        assert ROWS < rows(large) <= 2 * ROWS, "more than fifty names have this part: those are paged, too"
    else:
        assert rows(large) == rows(small) == shown
        assert len(large) < 1.1 * len(small)


def test_every_page_of_the_list_is_reached(looking: dict[int, Looking]) -> None:
    first, _ = looking[LARGE].page("/")
    assert "queue-0049" in first and "queue-0050" not in first and 'href="/?queues=50&amp;topics=0"' in first
    last, _ = looking[LARGE].page(f"/?queues={LARGE - ROWS}")
    assert f"queue-{LARGE - 1}" in last and f"queues={LARGE}" not in last
    found, asked = looking[LARGE].page("/?search=EUE-4711")
    assert rows(found) == 1 and "queue-4711" in found
    assert len(asked) == 3, "the broker searches: the console does not page through all names"


@pytest.mark.req("U27")
def test_taps_are_asked_for_once(looking: dict[int, Looking]) -> None:
    large = looking[LARGE]
    with blocking.connect(large.server.connection_string) as factory:
        for number in range(TAPS):
            factory.taps(f"queue-{number:04}").create("archive")
        with factory.sender("queue-0100") as sender:
            sender.send([compose(b"behind")])
    text, asked = large.page("/taps")
    assert asked == ["/$busbar/taps"] and rows(text) == ROWS
    assert text.index("queue-0100") < text.index("queue-0000"), "the one that is behind comes first"
    assert 'href="/taps?skip=50"' in text
    last, asked = large.page("/taps?skip=100")
    assert asked == ["/$busbar/taps"] and rows(last) == TAPS - 2 * ROWS
