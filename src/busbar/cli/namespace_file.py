"""Files that describe a namespace: the emulator's Config.json, Busbar's own (a superset), and ARM templates.

The values of a file are checked by the limits and the tier of the namespace that it is applied to. A file cannot change
these: they are set when Busbar starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from busbar.app.config import ConfigError, NamespaceConfig, parse_config
from busbar.app.jsonc import JsonError, parse
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.model.entities import AuthorizationRule, Description, Right, authorization_rules_of
from busbar.model.taps import TapDescription

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NamespaceFile:
    entities: tuple[tuple[str, Description], ...]
    notes: tuple[str, ...] = ()
    access: tuple[AuthorizationRule, ...] = ()
    """Authorization rules of the namespace."""
    taps: tuple[tuple[str, TapDescription], ...] = ()

    @property
    def has_keys(self) -> bool:
        rules = [*self.access, *(rule for _, one in self.entities for rule in authorization_rules_of(one))]
        return any(rule.primary_key for rule in rules)


def read_namespace_file(file: str, text: str, served: Json, given: Mapping[str, Any]) -> NamespaceFile:
    """Read a file for the namespace with the document `served`; `given` are parameters of a template. Raises
    CommandFailure."""
    from busbar.cli.arm_template import TemplateError, is_template, read_template

    try:
        value = parse(text)
    except JsonError as error:
        raise CommandFailure(f"{file}: this is not JSON: {error}.", ExitCode.USAGE) from None
    if not isinstance(value, dict):
        raise CommandFailure(f"{file}: this is not a JSON object.", ExitCode.USAGE)
    notes: list[str] = []
    if is_template(value):
        try:
            found = read_template(value, given)
        except TemplateError as error:
            raise CommandFailure(f"{file}: {error}", ExitCode.USAGE) from None
        every = [right.value for right in Right]
        rules = [
            {"Name": name, "Rights": every if Right.MANAGE in rights else rights}
            for name, rights in found.access
        ]
        own = found.document.get("Busbar", {}) | {"AuthorizationRules": rules}
        value, notes = found.document | {"Busbar": own}, found.notes
    elif given:
        raise CommandFailure(f"{file} is not an ARM template; it has no parameters.", ExitCode.USAGE)
    elif not any(key.lower() == "userconfig" for key in value):
        raise CommandFailure(
            f"{file}: this is neither a Config.json (UserConfig) nor an ARM template (resources).",
            ExitCode.USAGE,
        )
    document = _with_limits_of(value, served, file, notes)
    try:
        config = parse_config(json.dumps(document), file)
    except ConfigError as error:
        raise CommandFailure(str(error), ExitCode.USAGE) from None
    access = (*config.rules, *config.keyless_rules)
    return NamespaceFile(config.entities, (*notes, *config.warnings), access, config.taps)


def described(served: Json) -> NamespaceConfig:
    """What a running namespace has, from its document."""
    try:
        return parse_config(json.dumps(served), "the namespace")
    except ConfigError as error:
        raise CommandFailure(f"what answers describes itself in another way: {error}") from None


def read_parameters(given: list[str] | None) -> Json:
    """Values of parameters, from NAME=VALUE or a file of parameters. A VALUE that is JSON is taken as such."""
    found: Json = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if equals and name.isidentifier():
            found[name] = _json_or_text(value)
            continue
        try:
            content = parse(Path(text.removeprefix("@")).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise CommandFailure(f"--parameters {text}: {why}.", ExitCode.USAGE) from None
        except JsonError as error:
            raise CommandFailure(f"--parameters {text}: this is not JSON: {error}.", ExitCode.USAGE) from None
        values = content.get("parameters", content) if isinstance(content, dict) else None
        if not isinstance(values, dict):
            raise CommandFailure(f"--parameters {text}: this is not a file of parameters.", ExitCode.USAGE)
        for name, value in values.items():
            if not name.startswith("$"):
                found[name] = value.get("value") if isinstance(value, dict) and "value" in value else value
    return found


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _with_limits_of(value: Json, served: Json, file: str, notes: list[str]) -> Json:
    """The document with the tier and the limits of the namespace. Raises CommandFailure for another tier."""
    rest = {key: item for key, item in value.items() if key.lower() != "busbar"}
    own = next((item for key, item in value.items() if key.lower() == "busbar"), None) or {}
    there: Json = served["Busbar"]
    lowered = {key.lower(): item for key, item in own.items()} if isinstance(own, dict) else {}
    tier = lowered.get("tier", there["Tier"])
    if str(tier).lower() != there["Tier"].lower():
        raise CommandFailure(
            f"{file} is for the tier {tier}; the namespace is {there['Tier']}. The tier is set when Busbar starts.",
            ExitCode.REFUSED,
        )
    if "limits" in lowered and lowered["limits"] != there["Limits"]:
        notes.append(f"{file}: Busbar.Limits take effect when Busbar starts with this file.")
    return {**rest, "Busbar": there | {"AuthorizationRules": lowered.get("authorizationrules") or []}}
