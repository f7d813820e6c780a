"""The `Microsoft.ServiceBus` resources of an ARM template, as a Config.json document.

1. Resources are a list, or an object by symbolic names. Resources inside a resource have names and types below its own.
2. Names have the namespace as their first segment. A template describes the entities of one namespace; its name is not
   compared with that of the target.
3. A resource whose `condition` is false is left out. Resources of other providers are left out, with a note.
4. What Busbar does not have is an error that names the resource and the property. Properties of the namespace that change
   nothing for messages (location, tags, zone redundancy) are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from busbar.app.config import ConfigError, parse_config
from busbar.cli.arm_expressions import ExpressionError, TemplateValues

PROVIDER = "microsoft.servicebus/"
_NAMESPACE = "namespaces"
_KINDS = {
    "namespaces/queues": "queue",
    "namespaces/topics": "topic",
    "namespaces/topics/subscriptions": "subscription",
    "namespaces/topics/subscriptions/rules": "rule",
    "namespaces/authorizationrules": "rule of the namespace",
    "namespaces/queues/authorizationrules": "rule of a queue",
    "namespaces/topics/authorizationrules": "rule of a topic",
}
_HARMLESS = frozenset(
    (
        "zoneredundant",
        "publicnetworkaccess",
        "minimumtlsversion",
        "premiummessagingpartitions",
        "alternatename",
    )
)
_FILTERS = {"sqlfilter": "Sql", "correlationfilter": "Correlation"}
_DROPPED = frozenset(("compatibilitylevel", "requirespreprocessing"))
"""What Azure writes into rules, and what has no effect there either."""

_PLACE = re.compile(r"UserConfig\.Namespaces\[0\]\.(?:(?:Queues|Topics|Subscriptions|Rules)\[\d+\]\.?)+")
Json = dict[str, Any]


class TemplateError(Exception):
    """The template cannot be used; the text names the resource and the property."""


@dataclass(slots=True)
class TemplateEntities:
    """What a template describes."""

    document: Json
    """As a Config.json."""
    access: list[tuple[str, list[str]]] = field(default_factory=list)
    """Authorization rules of the namespace, with their rights."""
    notes: list[str] = field(default_factory=list)


def is_template(value: object) -> bool:
    """Whether this JSON is an ARM template, by its schema or its parts."""
    if not isinstance(value, dict):
        return False
    schema = str(value.get("$schema", "")).lower()
    return "deploymenttemplate" in schema or ("resources" in value and "contentVersion" in value)


def read_template(template: Json, given: Mapping[str, Any]) -> TemplateEntities:
    """Read a template with these values of its parameters. Raises TemplateError."""
    values = TemplateValues(_parameters(template, given), template.get("variables") or {})
    found = TemplateEntities({})
    reader = _TemplateReader(values, found)
    for resource in _resources(template.get("resources")):
        reader.resource(resource, "", "")
    found.document = reader.document()
    return found


def _parameters(template: Json, given: Mapping[str, Any]) -> Json:
    declared = template.get("parameters") or {}
    unknown = next((name for name in given if name.lower() not in {one.lower() for one in declared}), None)
    if unknown is not None:
        raise TemplateError(
            f"the template has no parameter '{unknown}'; it has {', '.join(declared) or 'none'}."
        )
    lowered = {name.lower(): value for name, value in given.items()}
    found: Json = {}
    for name, declaration in declared.items():
        if name.lower() in lowered:
            found[name] = lowered[name.lower()]
        elif isinstance(declaration, dict) and "defaultValue" in declaration:
            found[name] = declaration["defaultValue"]
        else:
            raise TemplateError(
                f"the parameter '{name}' has no value; give it with --parameters {name}=VALUE."
            )
    return found


def _resources(value: object) -> Iterator[Json]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        if not isinstance(item, dict):
            raise TemplateError("a resource of the template is not an object {...}.")
        yield item


class _TemplateReader:
    def __init__(self, values: TemplateValues, found: TemplateEntities) -> None:
        self._values = values
        self._found = found
        self._tier = ""
        self._entities: dict[str, Json] = {}
        """By path in lower case, as Config.json has them."""

    def resource(self, resource: Json, parent_type: str, parent_name: str) -> None:
        kind, name = self._identity(resource, parent_type, parent_name)
        what = f"{kind} '{name}'"
        if not kind.lower().startswith(PROVIDER):
            self._found.notes.append(f"{what} is left out: it is not of Microsoft.ServiceBus.")
            return
        if not self._evaluated(what, "condition", resource.get("condition", True)):
            return
        if "copy" in resource:
            raise TemplateError(f"{what}: 'copy' is not supported; write the resources one by one.")
        properties = self._evaluated(what, "properties", resource.get("properties") or {})
        short = kind[len(PROVIDER) :].lower()
        segments = name.split("/")
        if short == _NAMESPACE:
            self._namespace(what, self._evaluated(what, "sku", resource.get("sku") or {}), properties)
        elif short not in _KINDS:
            raise TemplateError(f"{what}: resources of the type {kind} are not supported.")
        elif len(segments) != short.count("/") + 1:
            raise TemplateError(
                f"{what}: the name has {len(segments)} parts; it has as many as its type: {short.count('/') + 1}."
            )
        else:
            # In names of resources `~` stands for the `/` of an entity.
            names = [segments[1].replace("~", "/"), *segments[2:]]
            self._entity(what, short, names, properties)
        for inner in _resources(resource.get("resources")):
            self.resource(inner, kind, name)

    def _identity(self, resource: Json, parent_type: str, parent_name: str) -> tuple[str, str]:
        kind = resource.get("type")
        if not isinstance(kind, str):
            raise TemplateError(f"a resource of the template has the type {kind!r}; it has to be a text.")
        name = self._evaluated(f"a resource of the type {kind}", "name", resource.get("name"))
        if not isinstance(name, str) or not name:
            raise TemplateError(f"a resource of the type {kind} has no name.")
        if parent_type and not kind.lower().startswith(PROVIDER):
            return f"{parent_type}/{kind}", f"{parent_name}/{name}"
        return kind, name

    def _evaluated(self, what: str, property: str, value: Any) -> Any:
        try:
            return self._values.evaluate(value)
        except ExpressionError as error:
            raise TemplateError(f"{what}: {property}: {error}.") from None

    def _namespace(self, what: str, sku: Any, properties: Json) -> None:
        self._tier = str(sku.get("name", "")) if isinstance(sku, dict) else ""
        for key, value in properties.items():
            if key.lower() in _HARMLESS or (key.lower() == "disablelocalauth" and value is False):
                continue
            raise TemplateError(f"{what}: the property '{key}' is not supported.")

    def _entity(self, what: str, short: str, names: list[str], properties: Json) -> None:
        if short.endswith("authorizationrules"):
            self._access(what, names, properties)
            return
        document: Json = {"Name": names[-1]}
        document["Properties"] = _rule(what, properties) if short.endswith("rules") else properties
        _check(what, _KINDS[short], document)
        self._merge(names, {**document, "What": what, "Kind": _KINDS[short]})

    def _access(self, what: str, names: list[str], properties: Json) -> None:
        unknown = next((key for key in properties if key.lower() != "rights"), None)
        if unknown is not None:
            raise TemplateError(f"{what}: the property '{unknown}' is not supported.")
        rights: Any = next(iter(properties.values()), [])
        if not isinstance(rights, list) or not rights:
            raise TemplateError(
                f"{what}: rights is {rights!r}; it has to be a list of Send, Listen and Manage."
            )
        if len(names) == 1:
            self._found.access.append((names[0], [str(right) for right in rights]))
            return
        rule = {"Name": names[-1], "Rights": rights}
        owner = self._entities.setdefault(_key(names[:-1]), {"Missing": what, "Name": names[0]})
        owner.setdefault("AuthorizationRules", []).append(rule)

    def _merge(self, names: list[str], document: Json) -> None:
        known = self._entities.setdefault(_key(names), {})
        if "Properties" in known:
            raise TemplateError(f"{document['What']} is in the template twice.")
        known.pop("Missing", None)
        known.update(document, Path=names)

    def document(self) -> Json:
        queues, topics = [], []
        for key in sorted(self._entities):  # parents before what is below them
            entity = self._entities[key]
            missing = entity.pop("Missing", "")
            names = entity.pop("Path", [])
            what, kind = entity.pop("What", missing), entity.pop("Kind", "")
            if missing:
                raise TemplateError(f"{what}: the template does not have the entity that it belongs to.")
            if kind == "queue":
                queues.append(entity)
            elif kind == "topic":
                topics.append(entity)
            else:
                owner = self._entities.get(_key(names[:-1]))
                if owner is None:
                    raise TemplateError(f"{what}: the template does not have the entity that it belongs to.")
                owner.setdefault("Rules" if kind == "rule" else "Subscriptions", []).append(entity)
        busbar = {"Tier": self._tier} if self._tier else {}
        return {"UserConfig": {"Namespaces": [{"Queues": queues, "Topics": topics}]}, "Busbar": busbar}


def _check(what: str, kind: str, entity: Json) -> None:
    """Check the values of one entity by the rules of Config.json, so that an error names the resource."""
    space: Json
    if kind == "queue":
        space = {"Queues": [entity]}
    elif kind == "topic":
        space = {"Topics": [entity]}
    elif kind == "subscription":
        space = {"Topics": [{"Name": "t", "Subscriptions": [entity]}]}
    else:
        space = {"Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [entity]}]}]}
    text = json.dumps({"UserConfig": {"Namespaces": [space]}, "Busbar": {"Tier": "Premium"}})
    try:
        warnings = parse_config(text, what).warnings
    except ConfigError as error:
        raise TemplateError(_PLACE.sub("", str(error))) from None
    if warnings:
        place = _PLACE.sub("", warnings[0]).removeprefix(f"{what}: ").partition(" ")[0]
        raise TemplateError(f"{what}: the property '{place.removeprefix('Properties.')}' is not supported.")


def _key(names: list[str]) -> str:
    return "\0".join(names).lower()


def _rule(what: str, properties: Json) -> Json:
    """The properties of a rule as Config.json has them."""
    found: Json = {}
    for key, value in properties.items():
        lowered = key.lower()
        if lowered == "filtertype":
            if str(value).lower() not in _FILTERS:
                raise TemplateError(f"{what}: filterType is {value!r}; it is SqlFilter or CorrelationFilter.")
            found["FilterType"] = _FILTERS[str(value).lower()]
        elif lowered in ("sqlfilter", "correlationfilter", "action") and isinstance(value, dict):
            found[key] = {inner: item for inner, item in value.items() if inner.lower() not in _DROPPED}
        else:
            raise TemplateError(f"{what}: the property '{key}' is not supported.")
    if "FilterType" not in found and "correlationfilter" in {key.lower() for key in found}:
        found["FilterType"] = "Correlation"
    return found
