"""`busbar export`: what operators configured, as a file that busbar apply, busbar serve or the emulator reads."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from busbar.cli.endpoint import ConnectionOptions, find_target
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.options import command
from busbar.cli.output import json_text, print_json

Json = dict[str, Any]
EMULATOR_PROPERTIES = frozenset(
    (
        "DeadLetteringOnMessageExpiration",
        "DefaultMessageTimeToLive",
        "DuplicateDetectionHistoryTimeWindow",
        "ForwardDeadLetteredMessagesTo",
        "ForwardTo",
        "LockDuration",
        "MaxDeliveryCount",
        "RequiresDuplicateDetection",
        "RequiresSession",
    )
)
API = "2021-11-01"
SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
_NOT_IN_AZURE = frozenset(("UserMetadata", "FilteringMessagesBeforePublishing", "SupportOrdering"))


class ExportFormat(StrEnum):
    BUSBAR = "busbar"
    EMULATOR = "emulator"
    ARM = "arm"


def add_export_command(app: typer.Typer) -> None:
    command(
        app,
        examples=(
            "busbar export > namespace.json",
            "busbar export --keys secret.json",
            "busbar export --format emulator Config.json",
            "busbar export --format arm template.json",
        ),
    )(export)


def export(
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write it.", show_default="standard output")
    ] = None,
    format: Annotated[
        ExportFormat, typer.Option("--format", help="busbar has all; the others what they can have.")
    ] = ExportFormat.BUSBAR,
    keys: Annotated[
        bool, typer.Option("--keys", help="With the keys of authorization rules, which are secrets.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    where: ConnectionOptions,
) -> None:
    """Write the entities, rules, taps and authorization rules of a namespace to a file. Keys and messages are not in it.

    busbar apply reads each of the formats, and busbar serve --config the first two. Taps of capture jobs and Spark streams
    are left out: these create them. A file with --keys can be read by its owner only.
    """
    from busbar.cli.management_client import ManagementClient
    from busbar.cli.stores import ask

    if keys and format is not ExportFormat.BUSBAR:
        raise CommandFailure(f"--keys: the format {format.value} has no keys.", ExitCode.USAGE)
    with ManagementClient(find_target(where)) as client:
        served: Json = ask(client, "GET", "definitions", "the namespace", "&keys=true" if keys else "")
    written = {
        ExportFormat.BUSBAR: lambda document: document,
        ExportFormat.EMULATOR: for_emulator,
        ExportFormat.ARM: as_template,
    }[format](served)
    if file is None:
        print_json(written)
        return
    try:
        _write(file, json_text(written) + "\n", overwrite, private=keys)
    except FileExistsError:
        raise CommandFailure(f"{file} exists; --overwrite replaces it.", ExitCode.USAGE) from None
    except OSError as error:
        raise CommandFailure(f"{file} cannot be written: {error.strerror}.") from None


def _write(file: Path, text: str, overwrite: bool, *, private: bool) -> None:
    """Write a file; a `private` one is never readable by others. Raises FileExistsError, OSError."""
    from busbar.app.private_files import write_file

    if not private:
        with file.open("w" if overwrite else "x", encoding="utf-8") as out:
            out.write(text)
    elif file.exists() and not overwrite:
        raise FileExistsError
    else:
        write_file(file, text.encode())


def for_emulator(document: Json) -> Json:
    """The document with what the vendor's emulator reads."""
    (space,) = document["UserConfig"]["Namespaces"]

    def entity(one: Json) -> Json:
        return {"Name": one["Name"], "Properties": _some(one["Properties"])}

    def subscription(one: Json) -> Json:
        rules = [rule for rule in one.get("Rules", []) if rule["Name"] != "$Default"]
        return {**entity(one), "Rules": rules}

    topics = [
        {**entity(one), "Subscriptions": [subscription(below) for below in one.get("Subscriptions", [])]}
        for one in space["Topics"]
    ]
    named = {"Name": space["Name"], "Queues": [entity(one) for one in space["Queues"]], "Topics": topics}
    return {"UserConfig": {"Namespaces": [named], "Logging": {"Type": "File"}}}


def _some(properties: Json) -> Json:
    return {key: value for key, value in properties.items() if key in EMULATOR_PROPERTIES}


def as_template(document: Json) -> Json:
    """The document as an ARM template with one parameter: the name of the namespace."""
    (space,) = document["UserConfig"]["Namespaces"]
    resources: list[Json] = [
        {
            "type": "Microsoft.ServiceBus/namespaces",
            "apiVersion": API,
            "name": "[parameters('namespaceName')]",
            "location": "[resourceGroup().location]",
            "sku": {"name": document["Busbar"]["Tier"]},
            "properties": {},
        }
    ]

    def add(kind: str, names: list[str], properties: Json) -> None:
        path = "/".join([names[0].replace("/", "~"), *names[1:]])
        resources.append(
            {
                "type": f"Microsoft.ServiceBus/namespaces/{kind}",
                "apiVersion": API,
                "name": f"[format('{{0}}/{path}', parameters('namespaceName'))]".replace("''", "'"),
                "properties": properties,
            }
        )

    for rule in document["Busbar"].get("AuthorizationRules", []):
        add("AuthorizationRules", [rule["Name"]], {"rights": rule["Rights"]})
    for kind in ("Queues", "Topics"):
        for one in space[kind]:
            add(kind.lower(), [one["Name"]], _camel(one["Properties"]))
            for rule in one.get("AuthorizationRules", []):
                add(
                    f"{kind.lower()}/authorizationRules",
                    [one["Name"], rule["Name"]],
                    {"rights": rule["Rights"]},
                )
            for below in one.get("Subscriptions", []):
                names = [one["Name"], below["Name"]]
                add("topics/subscriptions", names, _camel(below["Properties"]))
                for rule in below.get("Rules", []):
                    add("topics/subscriptions/rules", [*names, rule["Name"]], _rule(rule["Properties"]))
    parameters = {"namespaceName": {"type": "string", "defaultValue": space["Name"]}}
    return {"$schema": SCHEMA, "contentVersion": "1.0.0.0", "parameters": parameters, "resources": resources}


def _rule(properties: Json) -> Json:
    found = {
        key[0].lower() + key[1:]: _camel(value) if isinstance(value, dict) else value
        for key, value in properties.items()
    }
    return {**found, "filterType": f"{properties['FilterType']}Filter"}


def _camel(properties: Json) -> Json:
    return {key[0].lower() + key[1:]: value for key, value in properties.items() if key not in _NOT_IN_AZURE}
