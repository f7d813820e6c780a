"""Counts the files of src/busbar whose code runs for one operation on an open connection (values of `model` do not count).

    .venv/bin/python tools/files_crossed.py [CHECKOUT] [-v]

A server runs with all rooms from source and notes, while an operation is under way, every function that is called. With the
directory of another checkout, its server is measured, so that two designs can be compared. With -v the files are listed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
os.environ["BUSBAR_INTERPRETED"] = "1"

from busbar.model.sas import sign  # noqa: E402
from harness.amqp_driver import connect  # noqa: E402  # after the environment is set
from harness.serving import Busbar, config_text  # noqa: E402

CHECKOUT = Path(next((one for one in sys.argv[1:] if one != "-v"), ROOT)).resolve()

TRACER = """
import os, sys, threading
SWITCH, OUT = os.environ["CROSSED_SWITCH"], os.environ["CROSSED_OUT"]
seen, on = set(), False
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and on and code.co_flags & 2 and "/src/busbar/" in code.co_filename:
        seen.add(code.co_filename.split("/src/busbar/")[1])
def write():
    with open(f"{OUT}.{os.getpid()}", "w") as out:
        out.write("\\n".join(sorted(seen)))
def watch():
    global on
    import time
    while True:
        now = os.path.exists(SWITCH)
        if on:
            write()
        time.sleep(0.02)
        if now and not on:
            seen.clear()
        on = now
threading.setprofile(note)
sys.setprofile(note)
threading.Thread(target=watch, daemon=True).start()
"""


class Traced:
    """A server whose calls are noted on demand."""

    def __init__(self, directory: Path, config: str, arguments: tuple[str, ...] = ()) -> None:
        site = directory / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(textwrap.dedent(TRACER))
        self._switch, self._out = directory / "switch", directory / "crossed"
        environment = {
            "BUSBAR_INTERPRETED": "1",
            "PYTHONPATH": os.pathsep.join([str(site), str(CHECKOUT / "src")]),
            "CROSSED_SWITCH": str(self._switch),
            "CROSSED_OUT": str(self._out),
        }
        self.environment = environment
        self.busbar = Busbar(directory / "data", config, arguments=arguments, environment=environment)

    async def crossed(self, operation: Callable[[], Awaitable[object]]) -> set[str]:
        """The files whose functions were called while the operation was under way, in all processes of the server."""
        await asyncio.sleep(0.3)
        for old in self._out.parent.glob("crossed.*"):
            old.unlink()
        self._switch.touch()
        await asyncio.sleep(0.1)
        await operation()
        await asyncio.sleep(0.1)
        self._switch.unlink()
        await asyncio.sleep(0.3)
        found: set[str] = set()
        for out in self._out.parent.glob("crossed.*"):
            found |= {*out.read_text().split()}
        return {path for path in found if not path.startswith("model/")}


TOPIC = {
    "Name": "t",
    "Subscriptions": [
        {
            "Name": "s",
            "Rules": [
                {
                    "Name": "r",
                    "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "size > 3 OR 1=1"}},
                }
            ],
        }
    ],
}
QUEUE = """<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">
<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>"""
SPARK = """
import sys
from busbar.spark import local_session

connection_string, checkpoint = sys.argv[1:]
frame = local_session().readStream.format("busbar").option("connectionString", connection_string)
frame = frame.option("entity", "q").option("tap", "crossed").option("startingPosition", "earliest").load()
query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
"""


async def messages(traced: Traced) -> dict[str, set[str]]:
    port = traced.busbar.port
    connection = await connect(port)
    queue, partitioned, topic = [await connection.sender(name) for name in ("q", "p", "t")]
    for sender in (queue, partitioned, topic):
        await sender.send(1)
    receiver = await connection.receiver("p", credit=0)

    async def receive() -> None:
        assert receiver.link is not None
        receiver.link.grant(1)
        connection.flush()
        await receiver.settled(1)

    def run_spark() -> None:
        """In processes of its own, whose calls are noted from their start."""
        checkpoint = str(traced.busbar.data.parent / "checkpoint")
        command = [sys.executable, "-c", SPARK, traced.busbar.connection_string, checkpoint]
        subprocess.run(command, env=os.environ | traced.environment, check=True, capture_output=True)

    return {
        "send to a queue": await traced.crossed(lambda: queue.send(1)),
        "receive and complete, partitioned queue": await traced.crossed(receive),
        "publish to a topic with SQL rules": await traced.crossed(lambda: topic.send(1)),
        "Spark micro-batch": await traced.crossed(lambda: asyncio.to_thread(run_spark)),
    }


def create(port: int) -> None:
    address = f"http://localhost:{port}/created?api-version=2021-05"
    request = urllib.request.Request(address, QUEUE.encode(), method="PUT")
    token = sign(f"http://localhost:{port}/created", "RootManageSharedAccessKey", "SAS_KEY_VALUE", 1 << 32)
    request.add_header("Authorization", token)
    with urllib.request.urlopen(request) as answer:
        assert answer.status in (200, 201)


async def measure(directory: Path) -> dict[str, set[str]]:
    config = config_text({"q": {}, "p": {"EnablePartitioning": True}}, topics=[TOPIC])
    one = Traced(directory, config)
    one.busbar.start()
    try:
        found = await messages(one)
    finally:
        one.busbar.stop()
    second = directory / "several"
    second.mkdir()
    several = Traced(second, config, ("--brokers", "2", "--stores", "2"))
    several.busbar.start()
    try:
        port = several.busbar.port
        found["create a queue, two brokers"] = await several.crossed(lambda: asyncio.to_thread(create, port))
    finally:
        several.busbar.stop()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for what, files in asyncio.run(measure(Path(directory))).items():
            print(f"{what:<42}{len(files):>4}")
            if "-v" in sys.argv:
                print(
                    textwrap.fill(" ".join(sorted(files)), 120, initial_indent="  ", subsequent_indent="  ")
                )


if __name__ == "__main__":
    main()
