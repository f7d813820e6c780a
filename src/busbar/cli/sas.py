"""`busbar sas create-token`: a shared access signature for a queue, a topic or the whole namespace, with an end.

The key is that of the connection string or the data directory. For a rule of an entity, the entity's description is asked
for its key, which needs Manage.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from busbar.cli import values
from busbar.cli.endpoint import ConnectionOptions, ManagementEndpoint, find_target
from busbar.cli.entity_commands import checked
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.groups import GROUPS
from busbar.cli.options import Output, command, group
from busbar.cli.output import OutputFormat, print_json

sas_commands = group("sas", GROUPS["sas"])

Resource = Annotated[
    str,
    typer.Option(
        "--resource",
        metavar="PATH",
        help="The entity, or an address (sb://host/entity).",
        show_default="namespace",
    ),
]
RuleName = Annotated[
    str | None,
    typer.Option(
        "--rule", "--key-name", metavar="NAME", help="The access rule.", show_default="that of the connection"
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", envvar="BUSBAR_SAS_KEY", help="The rule's key, if it is not known."),
]
Expiry = Annotated[
    str, typer.Option("--expiry", metavar="DURATION", help="How long it is valid: 1h, PT20M, 7d, or seconds.")
]


@command(
    sas_commands,
    name="create-token",
    examples=(
        "busbar sas create-token --resource orders --expiry 20m",
        'curl -H "Authorization: $(busbar sas create-token --resource orders)" ...',
    ),
)
def create_token(
    *,
    resource: Resource = "",
    rule: RuleName = None,
    expiry: Expiry = "1h",
    key: Key = None,
    output: Output = OutputFormat.TABLE,
    where: ConnectionOptions,
) -> None:
    """Print a token that gives a rule's rights on a resource, and on all that is below it, until it expires."""
    from busbar.model.sas import sign

    try:
        lifetime = values.seconds(expiry)
    except ValueError as error:
        raise CommandFailure(f"--expiry: {error}.", ExitCode.USAGE) from None
    target = find_target(where)
    address, path = _resource(resource or target.entity_path, target)
    name = rule or target.key_name
    if not name:
        raise CommandFailure("--rule is needed: the connection string has no key.", ExitCode.USAGE)
    expires = int(time.time()) + lifetime
    token = sign(address, name, key or _key(target, name, path), expires)
    if output is OutputFormat.JSON:
        ends = datetime.fromtimestamp(expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        print_json({"token": token, "resource": address, "rule": name, "expiresAt": ends})
    else:
        print(token)


def _resource(resource: str, target: ManagementEndpoint) -> tuple[str, str]:
    """The address that is signed, and the path in it."""
    if "://" in resource:
        return resource, resource.split("://", 1)[1].partition("/")[2].strip("/")
    path = resource.strip("/")
    if path:
        checked(path, "resource")
    return f"sb://{target.authority}/{path}", path


def _key(target: ManagementEndpoint, rule: str, path: str) -> str:
    if rule == target.key_name and target.key:
        return target.key
    from busbar.cli.management_client import ManagementClient
    from busbar.client.administration_xml import children, text_of

    if path:
        with ManagementClient(target) as client:
            rules = children(client.get(path, f"'{path}'").description, "AuthorizationRules")
        for found in rules:
            key = text_of(found, "PrimaryKey")
            if text_of(found, "KeyName") == rule and key:
                return key
    raise CommandFailure(
        f"the key of the rule '{rule}' is not known; give it with --key or BUSBAR_SAS_KEY.",
        ExitCode.NOT_FOUND,
    )
