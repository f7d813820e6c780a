"""`kill -9` of the controller amid creations, changes and deletions of entities, again and again on the same data.

Afterwards every change that was answered holds, and one that was not has been made as a whole or not at all: a topic is
there with its subscriptions and their rules or without any of them, and a queue that is there can be used.
BUSBAR_KILL_SEED replays a run (the same changes, killed after as many of them), BUSBAR_DEEP=1 makes hundreds of rounds.
"""

from __future__ import annotations

import os
import random
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from harness.promises import require_kept
from harness.serving import Busbar, config_text
from tests.interop.administration import BareHttp, entry

ROUNDS = 300 if os.environ.get("BUSBAR_DEEP") == "1" else 12
SEED = int(os.environ.get("BUSBAR_KILL_SEED", str(random.randrange(1 << 32))))
WORKERS = 3
VERSION = "api-version=2021-05"
ATOM = "{http://www.w3.org/2005/Atom}"
BUS = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"

State = dict[str, str]
"""Paths and the mark that was last written there."""


class Http:
    """One connection with keep-alive."""

    def __init__(self, server: Busbar) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
        self._token = BareHttp(server).token()

    def ask(self, method: str, path: str, body: str = "", change: bool = False) -> tuple[int, bytes]:
        headers = {"Authorization": self._token}
        if change:
            headers["If-Match"] = "*"
        separator = "&" if "?" in path else "?"
        self._connection.request(
            method, f"/{quote(path, safe='/?$&=')}{separator}{VERSION}", body.encode(), headers
        )
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def feed(self, path: str) -> list[tuple[str, str]]:
        """The names and marks of a list, page by page."""
        found: list[tuple[str, str]] = []
        while True:
            status, body = self.ask("GET", f"{path}?$skip={len(found)}&$top=100")
            assert status == 200, body
            page = ElementTree.fromstring(body).findall(f"{ATOM}entry")
            for item in page:
                mark = item.find(f".//{BUS}UserMetadata")
                if mark is None:
                    mark = item.find(f".//{BUS}SqlExpression")
                found.append((item.findtext(f"{ATOM}title", ""), "" if mark is None else mark.text or ""))
            if len(page) < 100:
                return found


class Worker:
    """Changes entities of its own, one at a time, and knows what has to be there."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.name = f"w{number}"
        self.before: State = {}
        self.after: State = {}
        """Differs from `before` while a change is not answered."""
        self.answered = 0
        self.faults: list[str] = []
        self._chance = chance
        self._counter = 0

    def run(self, server: Busbar) -> None:
        http = Http(server)
        try:
            while True:
                method, path, body, change, self.after = self._next()
                status, answer = http.ask(method, path, body, change)
                if status not in (200, 201):
                    self.faults.append(f"{method} {path}: {status} {answer.decode()}")
                    return
                self.before = self.after
                self.answered += 1
        except (OSError, HTTPException):
            return  # killed

    def _next(self) -> tuple[str, str, str, bool, State]:
        """A request, and the state that it leads to."""
        self._counter += 1
        mark = f"{self._counter}=1"
        known = sorted(self.before)
        kind = self._chance.random()
        if known and kind < 0.2:
            path = self._chance.choice(known)
            gone = {other for other in known if other == path or other.startswith(path + "/")}
            return "DELETE", path, "", False, {p: m for p, m in self.before.items() if p not in gone}
        if known and kind < 0.4:
            path = self._chance.choice(known)
            return "PUT", path, _described(path, mark), True, {**self.before, path: mark}
        path = f"{self.name}-{'qt'[self._chance.random() < 0.5]}{self._counter}"
        parents = [p for p in known if "/Rules/" not in p and not p.startswith(f"{self.name}-q")]
        if parents and kind < 0.8:
            parent = self._chance.choice(parents)
            word = "Rules" if "/Subscriptions/" in parent else "Subscriptions"
            path = f"{parent}/{word}/{word[0].lower()}{self._counter}"
        after = {**self.before, path: mark}
        if "/Subscriptions/" in path and "/Rules/" not in path:
            after[f"{path}/Rules/$Default"] = "1=1"
        return "PUT", path, _described(path, mark), False, after

    def found(self, http: Http) -> State:
        """What of its own is there."""
        state = {}
        for path, mark in http.feed("$Resources/Queues") + http.feed("$Resources/Topics"):
            if path.startswith(self.name + "-"):
                state[path] = mark
        for topic in [path for path in state if path.startswith(f"{self.name}-t")]:
            for name, mark in http.feed(f"{topic}/Subscriptions"):
                subscription = f"{topic}/Subscriptions/{name}"
                state[subscription] = mark
                for rule, expression in http.feed(f"{subscription}/Rules"):
                    state[f"{subscription}/Rules/{rule}"] = expression
        return state


def _described(path: str, mark: str) -> str:
    if "/Rules/" in path:
        return entry(
            f'RuleDescription <Filter i:type="SqlFilter"><SqlExpression>{mark}</SqlExpression></Filter>'
        )
    kind = "Subscription" if "/Subscriptions/" in path else "Queue" if "-q" in path else "Topic"
    return entry(f"{kind}Description <UserMetadata>{mark}</UserMetadata>")


@pytest.mark.req("U25")
@pytest.mark.parametrize(("brokers", "rounds"), [("1", ROUNDS), ("2", ROUNDS // 4)])
def test_an_entity_is_fully_there_or_not_there(tmp_path: Path, brokers: str, rounds: int) -> None:
    print(f"BUSBAR_KILL_SEED={SEED}")
    chance = random.Random(SEED)
    server = Busbar(tmp_path / "data", config_text({}), arguments=("--brokers", brokers))
    workers = [Worker(number, random.Random(chance.random())) for number in range(WORKERS)]
    undecided = 0
    for number in range(rounds + 1):
        server.start()
        http = Http(server)
        for worker in workers:
            found = worker.found(http)
            assert found in (worker.before, worker.after), f"round {number}, BUSBAR_KILL_SEED={SEED}"
            undecided += worker.before != worker.after
            worker.before = worker.after = found
            for queue in [path for path in found if path.startswith(f"{worker.name}-q")][-3:]:
                status, answer = http.ask("POST", f"{queue}/messages", "hello")
                assert status == 201, answer
        if number == rounds:
            break
        threads = [threading.Thread(target=worker.run, args=(server,)) for worker in workers]
        for thread in threads:
            thread.start()
        # After so many answers, and then amid something: on a busy machine a time alone may pass before anything happens.
        enough = sum(worker.answered for worker in workers) + chance.randrange(5, 40)
        patience = time.monotonic() + 10
        while sum(worker.answered for worker in workers) < enough and time.monotonic() < patience:
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.02))
        server.kill()
        for thread in threads:
            thread.join()
        require_kept(f"BUSBAR_KILL_SEED={SEED}", [fault for worker in workers for fault in worker.faults])
    assert server.stop() == 0, server.error_text
    answered = sum(worker.answered for worker in workers)
    assert answered > 10 * rounds, "there was no load"
    print(f"{rounds} rounds: {answered} changes answered, {undecided} cut short")
