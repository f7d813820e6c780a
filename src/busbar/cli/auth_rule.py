"""`busbar queue|topic|namespace auth-rule list|show|create|update|delete|keys|renew`: shared access rules and their keys.

Keys are printed by `keys` and `renew` alone. A change is in force at all brokers when the command returns: clients whose key
is not valid any more lose their links.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from busbar.cli.endpoint import ConnectionOptions, ManagementEndpoint, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import Output, Yes, command, group
from busbar.cli.output import OutputFormat, print_json, print_table

if TYPE_CHECKING:
    from busbar.cli.management_client import ManagementClient

View = dict[str, Any]
RIGHTS = ("Send", "Listen", "Manage")
Entity = Annotated[str, typer.Argument(metavar="ENTITY", show_default=False)]
RuleName = Annotated[str, typer.Argument(metavar="RULE", show_default=False)]
Rights = Annotated[
    list[str] | None,
    typer.Option(
        "--rights", metavar="RIGHT", help="Send, Listen or Manage; may be given again, or Send,Listen."
    ),
]
KeyKind = Annotated[
    str, typer.Option("--key", metavar="primary|secondary", help="Which key.", show_default=False)
]
KeyValue = Annotated[
    str,
    typer.Option(
        "--key-value",
        metavar="KEY",
        envvar="BUSBAR_NEW_KEY",
        help="The key to use; without it, one is drawn.",
        show_default=False,
    ),
]


def add_auth_rule_commands(app: typer.Typer, noun: str) -> None:
    """Add the commands to those of a queue, a topic or the namespace. `az` has them as `authorization-rule`."""
    rules = group("auth-rule", "List, create, change and delete rules; print keys.")
    verbs = AuthRuleVerbs(noun)
    at = "" if noun == "namespace" else "orders "
    without = ("entity",) if noun == "namespace" else ()
    here = f"busbar {noun} auth-rule"
    for verb, text, example in (
        (verbs.list, "List the rules: names and rights, without keys.", f"{here} list {at}".strip()),
        (verbs.show, "Show one rule, without its keys.", f"{here} show {at}sender"),
        (
            verbs.create,
            "Create a rule, with two keys that are drawn for it.",
            f"{here} create {at}sender --rights Send",
        ),
        (
            verbs.update,
            "Change the rights of a rule. Its keys stay.",
            f"{here} update {at}sender --rights Send,Listen",
        ),
        (
            verbs.delete,
            "Delete a rule. Clients with its keys lose their links at once. Asks first; in a script it needs --yes.",
            f"{here} delete {at}sender --yes",
        ),
        (
            verbs.keys,
            "Print both keys of a rule, and connection strings with them. All of these are secrets.",
            f"{here} keys {at}sender -o json",
        ),
        (
            verbs.renew,
            "Replace a key of a rule by a new one, and print both. Clients with the old key lose their links at once.",
            f"{here} renew {at}sender --key primary",
        ),
    ):
        command(rules, without=without, help=text, examples=(example,))(verb)
    app.add_typer(rules, name="auth-rule")
    app.add_typer(rules, name="authorization-rule", hidden=True)


class AuthRuleVerbs:
    """The commands for rules of one kind of owner; `entity` is empty for the namespace."""

    def __init__(self, noun: str) -> None:
        self._noun = noun

    def list(self, *, entity: Entity, output: Output = OutputFormat.TABLE, where: ConnectionOptions) -> None:
        with _client(find_target(where)) as client:
            found: list[View] = self.ask(client, "GET", entity, "")
        if output is OutputFormat.JSON:
            print_json(found)
        else:
            print_table(("Name", "Rights", "Updated"), [_row(rule) for rule in found], "There are no rules.")

    def show(
        self,
        *,
        entity: Entity,
        rule: RuleName,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        with _client(find_target(where)) as client:
            self._print(self.ask(client, "GET", entity, rule), output)

    def create(
        self,
        *,
        entity: Entity,
        rule: RuleName,
        rights: Rights = None,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        body = {"rights": _rights(rights)}
        with _client(find_target(where)) as client:
            self._print(self.ask(client, "POST", entity, rule, body), output)

    def update(
        self,
        *,
        entity: Entity,
        rule: RuleName,
        rights: Rights = None,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        body = {"rights": _rights(rights)}
        with _client(find_target(where)) as client:
            self._print(self.ask(client, "PUT", entity, rule, body), output)

    def delete(self, *, entity: Entity, rule: RuleName, yes: Yes = False, where: ConnectionOptions) -> None:
        from busbar.cli.entity_commands import confirm

        with _client(find_target(where)) as client:
            self.ask(client, "GET", entity, rule)  # what does not exist is not asked about
            client.say_target()
            confirm(f"Delete {self._what(entity, rule)}? Clients that use its keys are cut off.", yes)
            self.ask(client, "DELETE", entity, rule)
        print(f"{self._what(entity, rule)} deleted", file=sys.stderr)

    def keys(
        self,
        *,
        entity: Entity,
        rule: RuleName,
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        target = find_target(where)
        with _client(target) as client:
            found: View = self.ask(client, "GET", entity, rule, keys=True)
        _print_keys(found, target, entity, output)

    def renew(
        self,
        *,
        entity: Entity,
        rule: RuleName,
        key: KeyKind,
        key_value: KeyValue = "",
        output: Output = OutputFormat.TABLE,
        where: ConnectionOptions,
    ) -> None:
        which = key.lower().removesuffix("key")  # az: PrimaryKey, SecondaryKey
        if which not in ("primary", "secondary"):
            raise CommandFailure(f"--key is '{key}'; it is primary or secondary.", ExitCode.USAGE)
        body = {f"{which}Key": key_value} if key_value else {}
        target = find_target(where)
        with _client(target) as client:
            found: View = self.ask(client, "POST", entity, rule, body, renew=which)
        _print_keys(found, target, entity, output)

    def ask(
        self,
        client: ManagementClient,
        method: str,
        entity: str,
        rule: str,
        body: View | None = None,
        *,
        keys: bool = False,
        renew: str = "",
    ) -> Any:
        """The answer of the broker to a request about a rule, or about all. Raises CommandFailure."""
        from busbar.cli.entity_commands import checked

        path = "$busbar/authorization-rules" + (f"/{checked(entity, self._noun)}" if entity else "")
        query = (f"&rule={quote(rule, safe='')}" if rule else "") + ("&keys=true" if keys else "")
        query += f"&renew={renew}" if renew else ""
        sent = None if body is None else json.dumps(body).encode()
        what = self._what(entity, rule) if rule else f"{self._noun} '{entity}'" if entity else "the namespace"
        answer = client.expect(method, path, what, query=query, body=sent)
        return json.loads(answer.body) if answer.body else None

    def _what(self, entity: str, rule: str) -> str:
        return f"rule '{rule}' of " + (f"{self._noun} '{entity}'" if entity else "the namespace")

    def _print(self, rule: View, output: OutputFormat) -> None:
        if output is OutputFormat.JSON:
            print_json(rule)
        else:
            print_table(("Name", "Rights", "Updated"), [_row(rule)], "")


def _row(rule: View) -> tuple[str, ...]:
    return rule["name"], ", ".join(rule["rights"]), rule["updatedAt"]


def _rights(given: list[str] | None) -> list[str]:
    """The rights of all options, each of which may name several."""
    words = [word for text in given or () for word in text.replace(",", " ").split()]
    known = {right.lower(): right for right in RIGHTS}
    for word in words:
        if word.lower() not in known:
            raise CommandFailure(f"--rights: '{word}' is none of {', '.join(RIGHTS)}.", ExitCode.USAGE)
    if not words:
        raise CommandFailure(f"which rights? --rights {'|'.join(RIGHTS)}.", ExitCode.USAGE)
    return [known[word.lower()] for word in words]


def keys_shown(rule: View, target: ManagementEndpoint, entity: str) -> dict[str, str]:
    """Both keys, and the connection string that clients of messaging use with each."""
    found = {"keyName": rule["name"]}
    for which in ("primary", "secondary"):
        key = rule[f"{which}Key"]
        path = f";EntityPath={entity}" if entity else ""
        plain = "" if target.tls else ";UseDevelopmentEmulator=true"
        found[f"{which}Key"] = key
        found[f"{which}ConnectionString"] = (
            f"Endpoint=sb://{target.authority}/;SharedAccessKeyName={rule['name']};SharedAccessKey={key}{path}{plain}"
        )
    return found


def _print_keys(rule: View, target: ManagementEndpoint, entity: str, output: OutputFormat) -> None:
    found = keys_shown(rule, target, entity)
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        for name, value in found.items():
            print(f"{name:27}{value}")


def _client(target: ManagementEndpoint) -> ManagementClient:
    from busbar.cli.management_client import ManagementClient

    return ManagementClient(target)
