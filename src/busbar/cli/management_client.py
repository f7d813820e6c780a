"""The management API, as a command calls it: `busbar.client`, with failures in the words of commands.

Whatever goes wrong becomes a CommandFailure with what to do about it. Keys and tokens are in none of its texts. A command
works on descriptions in ATOM, and not on the objects of the administration client. So it shows what came, and an update
sends back what it did not change.
"""

from __future__ import annotations

import ssl
from collections.abc import Coroutine, Iterator, Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from xml.etree.ElementTree import Element

from busbar.cli.endpoint import ManagementEndpoint, say_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.client.administration_requests import ManagementRequests
from busbar.client.administration_rules import RuleProperties, read_rule, write_rule
from busbar.client.administration_xml import AtomContent, NotAtomReply, read_error
from busbar.client.blocking_loop import loop_thread
from busbar.client.errors import BusbarClientError, ConnectionLost, OperationTimeout, reason_of
from busbar.client.http_requests import HttpReply, NotHttp
from busbar.client.retry import NO_RETRY

TIMEOUT_SECONDS = 60.0

T = TypeVar("T")


class ManagementClient:
    """A context manager. Before the first request that changes something it prints the namespace."""

    def __init__(self, target: ManagementEndpoint, *, says_target: bool = True) -> None:
        self._target = target
        self._has_said = not says_target
        self._requests = ManagementRequests(
            target, TIMEOUT_SECONDS, NO_RETRY, _context(target), self._refusal
        )
        self._thread = loop_thread()

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._requests.connections.close())

    def say_target(self) -> None:
        """Print which namespace is the target, once. A command that asks a question calls this first."""
        if not self._has_said:
            self._has_said = True
            say_target(self._target)

    def get(self, path: str, what: str) -> AtomContent:
        """The entry at `path`; `what` names it in errors ("queue 'orders'")."""
        entry = self._run(self._requests.read(path, what))
        if entry is None:
            raise CommandFailure(f"{what} does not exist.", ExitCode.NOT_FOUND)
        return entry

    def list(
        self, path: str, what: str, skip: int = 0, top: int | None = None, search: str = ""
    ) -> Iterator[AtomContent]:
        """The entries of a list from `skip` on, at most `top`, asked for page by page; with `search`, those whose names
        contain it."""
        try:
            for page in self._thread.iterate(self._requests.pages(path, what, skip, top, search)):
                yield from page
        except BusbarClientError as error:
            raise self._failure(error) from None

    def create(self, path: str, description: Element, what: str) -> AtomContent:
        self.say_target()
        return self._run(self._requests.put(path, description, what, change=False))

    def update(self, path: str, description: Element, what: str) -> AtomContent:
        self.say_target()
        return self._run(self._requests.put(path, description, what, change=True))

    def delete(self, path: str, what: str) -> None:
        self.expect("DELETE", path, what)

    def get_rule(self, path: str, what: str) -> RuleProperties:
        return self._rule(self.get(path, what))

    def list_rules(
        self, path: str, what: str, skip: int = 0, top: int | None = None
    ) -> Iterator[RuleProperties]:
        return map(self._rule, self.list(path, what, skip, top))

    def create_rule(self, path: str, rule: RuleProperties, what: str) -> RuleProperties:
        return self._rule(self.create(path, write_rule(rule), what))

    def update_rule(self, path: str, rule: RuleProperties, what: str) -> RuleProperties:
        return self._rule(self.update(path, write_rule(rule), what))

    def expect(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> HttpReply:
        """Make a request and return the answer, if it is a success. Raises CommandFailure."""
        if method != "GET":
            self.say_target()
        return self._run(
            self._requests.request(method, path, what, query=query, headers=headers, body=body or b"")
        )

    def metrics(self) -> str:
        """The metrics of the namespace, as Prometheus gets them. Raises CommandFailure."""
        what = "the metrics of the namespace"
        answer = self._run(self._requests.request("GET", "metrics", what, query=None))
        return answer.body.decode("utf-8", "replace")

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return self._thread.run(call)
        except BusbarClientError as error:
            raise self._failure(error) from None

    def _rule(self, entry: AtomContent) -> RuleProperties:
        try:
            return read_rule(entry, typed=True)
        except NotAtomReply as error:
            raise self._failure(error) from None

    def _failure(self, error: BusbarClientError) -> CommandFailure:
        """The failure for a request that got no answer, or none that can be read."""
        cause, address = error.__cause__, self._target.url
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CommandFailure(
                f"the certificate of {address} is not trusted ({cause.verify_message}); name its authority with --ca FILE "
                "or SSL_CERT_FILE (`busbar trust` shows that of a data directory)."
            )
        if isinstance(cause, ssl.SSLError):
            return CommandFailure(
                f"{address} does not speak TLS ({cause.reason or cause}); a connection string with "
                "UseDevelopmentEmulator=true is used without."
            )
        if isinstance(error, NotAtomReply):
            return CommandFailure(
                f"what answers at {address} is not a Busbar: {error.text[:1].lower()}{error.text[1:]}"
            )
        if isinstance(error, NotHttp):
            reason = "what does is not HTTP"
        elif isinstance(error, OperationTimeout):
            reason = "timed out"
        elif isinstance(cause, OSError):
            reason = reason_of(cause)
        elif isinstance(error, ConnectionLost):
            reason = "the connection was closed before the end of the answer"
        else:
            return CommandFailure(error.text)
        return CommandFailure(f"no Busbar answers at {address} ({reason}); {self._target.remedy}.")

    def _refusal(self, answer: HttpReply, what: str) -> CommandFailure:
        detail = read_error(answer.body)[1] or _phrase(answer.status)
        if answer.status in (404, 410):
            return CommandFailure(f"{what} does not exist: {detail}", ExitCode.NOT_FOUND)
        if answer.status == 401:
            shown = f"the key '{self._target.key_name}'" if self._target.key else "the signature"
            return CommandFailure(
                f"{self._target.url} refused {shown}: {detail} Check the connection string.",
                ExitCode.REFUSED,
            )
        if (400 <= answer.status < 500 and answer.status not in (408, 429)) or answer.status == 501:
            return CommandFailure(f"{what} was refused: {detail}", ExitCode.REFUSED)
        return CommandFailure(f"the broker failed ({answer.status}): {detail}")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no reason given"


def _context(target: ManagementEndpoint) -> ssl.SSLContext | None:
    if not target.tls:
        return None
    context = ssl.create_default_context()
    for authority in target.authorities:
        try:
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            raise CommandFailure(
                f"{authority} is not a certificate authority in PEM: {error}", ExitCode.USAGE
            ) from None
    return context
