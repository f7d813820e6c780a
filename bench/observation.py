"""What it costs to be watched: the console's first page open, and metrics scraped every five seconds, with 1,000 queues.

The server does nothing else while it is watched. Its CPU time of that is compared with what it spends at full load in the
same time, in the same run. Watching may take

    the console and a scraper / full load      at most 0.02

It also prints what one scrape takes, from many in a row. On a machine that is busy with other programs the load is not full,
because client and server wait for a processor. Then no ratio is asked.
"""

from __future__ import annotations

import base64
import http.client
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

import uvloop

from harness.cycle import cycling
from harness.measured import MeasuredServer, measured_server, rooms_are_compiled

QUEUES = 1_000
IN_FLIGHT = 1_000
SECONDS = 30.0
LOAD_SECONDS = 5.0
SCRAPE_SECONDS = 5.0
PAGE_SECONDS = 3.0
"""As console.js renews the page."""
MOST = 0.02
SCRAPES = 40
FULL = 0.5
"""CPU-s each second that a full load takes at least: the server has one event loop, and a processor for it."""


class Page:
    """The first page of a console, which a person has open."""

    def __init__(self, sign_in: str) -> None:
        place = urlsplit(sign_in)
        assert place.hostname is not None
        self._connection = http.client.HTTPConnection(place.hostname, place.port or 0, timeout=30)
        self._connection.request("GET", f"{place.path}?{place.query}")
        answer = self._connection.getresponse()
        answer.read()
        cookies = SimpleCookie(answer.getheader("Set-Cookie") or "")
        self._headers = {"Cookie": "; ".join(f"{name}={one.value}" for name, one in cookies.items())}

    def renew(self) -> None:
        self._connection.request("GET", "/", headers=self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status == 200 and b"queue-" in text, (answer.status, text[:500])


@contextmanager
def open_page(server: MeasuredServer) -> Iterator[Page]:
    arguments = ("console", "--port", "0", "--no-browser", "--data", str(server.busbar.data))
    console = subprocess.Popen(
        [sys.executable, "-m", "busbar", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert console.stdout is not None
        found = re.fullmatch(r"ready (\S+)\n", console.stdout.readline())
        assert found is not None, "the console did not start"
        yield Page(found[1])
    finally:
        console.terminate()
        console.wait(20)


def scrape(server: MeasuredServer) -> int:
    """The bytes of the metrics."""
    connection = http.client.HTTPConnection("127.0.0.1", server.busbar.port, timeout=30)
    secret = base64.b64encode(f"RootManageSharedAccessKey:{server.busbar.key}".encode()).decode()
    connection.request("GET", "/metrics", headers={"Authorization": f"Basic {secret}"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text[:500]
    return len(text)


def watch(server: MeasuredServer, page: Page) -> tuple[float, int]:
    """The CPU time of the server in each second of being watched, and the bytes of a scrape."""
    page.renew()
    size = scrape(server)
    spent, began = server.cpu_seconds(), time.monotonic()
    next_page = next_scrape = began
    while (now := time.monotonic()) < began + SECONDS:
        if now >= next_page:
            page.renew()
            next_page += PAGE_SECONDS
        if now >= next_scrape:
            scrape(server)
            next_scrape += SCRAPE_SECONDS
        time.sleep(max(0.0, min(next_page, next_scrape) - time.monotonic()))
    return (server.cpu_seconds() - spent) / (time.monotonic() - began), size


def scrape_cost(server: MeasuredServer) -> float:
    """The CPU time of the server for one scrape, of many in a row."""
    scrape(server)
    spent = server.cpu_seconds()
    for _ in range(SCRAPES):
        scrape(server)
    return (server.cpu_seconds() - spent) / SCRAPES


def idle(server: MeasuredServer, seconds: float) -> float:
    spent = server.cpu_seconds()
    time.sleep(seconds)
    return (server.cpu_seconds() - spent) / seconds


def main() -> int:
    queues = {f"queue-{number}": {"MaxSizeInMegabytes": 5120} for number in range(QUEUES)}
    with measured_server(queues) as server:
        load = uvloop.run(cycling(server, "queue-0", IN_FLIGHT, LOAD_SECONDS))
        full = load.cpu_us * load.messages / 1e6 / load.seconds
        while idle(server, 1.0) > MOST / 2:
            pass  # the last messages of the load are being deleted
        alone = idle(server, SECONDS / 3)
        with open_page(server) as page:
            watched, size = watch(server, page)
        one = scrape_cost(server)
    ratio = (watched - alone) / full
    print(f"full load       {full:8.3f} CPU-s each second, {load.messages / load.seconds:,.0f} messages")
    print(f"idle            {alone:8.4f} CPU-s each second")
    print(f"watched         {watched:8.4f} CPU-s each second, {size / 1024:,.0f} KiB in a scrape")
    print(f"a scrape        {one * 1000:8.1f} CPU-ms")
    print(f"watching / full {ratio:8.4f} (at most {MOST})")
    if not rooms_are_compiled():
        print(
            "the compiled rooms are not built: the interpreted ones were measured, and no ratio is asked of them"
        )
        return 0
    if full < FULL:
        print(
            f"the load was not full ({full:.2f} CPU-s each second): the machine is busy, and no ratio is asked"
        )
        return 0
    return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
