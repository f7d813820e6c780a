"""What it takes to list 100 queues with their counts: several brokers beside one process.

The list is that of `ServiceBusAdministrationClient.list_queues_runtime_properties`: one page of ATOM. A broker has all
entities in memory, and gets the counts with one request to each other broker. Rounds alternate, and the medians count:

    3 brokers / 1 process      at most 2
"""

from __future__ import annotations

import http.client
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from harness.amqp_driver import sas_token
from harness.measured import rooms_are_compiled
from harness.serving import Busbar, Properties, config_text

QUEUES = 100
BROKERS = (1, 3)
ROUNDS, LISTS = 15, 4
MOST = 2.0


def list_queues(server: Busbar) -> float:
    """The seconds of one list, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.connect()
        headers = {"Authorization": sas_token(f"http://127.0.0.1:{server.port}/", server.key)}
        began = time.perf_counter()
        for _ in range(LISTS):
            connection.request(
                "GET", f"/$Resources/Queues?api-version=2021-05&$skip=0&$top={QUEUES}", headers=headers
            )
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or body.count(b"<entry") != QUEUES:
                raise SystemExit(f"the list failed with {answer.status}: {body[:200]!r}")
        return (time.perf_counter() - began) / LISTS
    finally:
        connection.close()


def main() -> int:
    if not rooms_are_compiled():
        print("the compiled rooms are not built: the interpreted ones are measured")
    queues: dict[str, Properties] = {f"queue-{number:03}": {} for number in range(QUEUES)}
    with tempfile.TemporaryDirectory(prefix="busbar-bench-") as directory, ExitStack() as stack:
        servers = {}
        for count in BROKERS:
            server = Busbar(
                Path(directory) / str(count), config_text(queues), arguments=("--brokers", str(count))
            ).start()
            stack.callback(server.stop)
            servers[count] = server
        times: dict[int, list[float]] = {count: [] for count in BROKERS}
        for number in range(ROUNDS + 2):
            for count, server in servers.items():
                took = list_queues(server)
                if number >= 2:  # the first warm up
                    times[count].append(took)
        for count, found in times.items():
            print(
                f"{count} broker{'s' if count > 1 else ' '}: {1000 * median(found):.1f} ms for {QUEUES} queues"
            )
        ratio = median(times[BROKERS[1]]) / median(times[BROKERS[0]])
        missed = "" if ratio <= MOST else "  MISSED"
        print(f"{BROKERS[1]} brokers / 1 process: {ratio:.2f} × (at most {MOST:g}){missed}")
        return 0 if ratio <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
