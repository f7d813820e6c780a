"""The AuthorizationRules of an entity: names, rights and keys. Only clients with Manage on the entity get them.

If a rule comes without a key, the catalogue generates one. The catalogue also records when a rule was created and changed.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from busbar.gateway.http.atom_values import write_time
from busbar.gateway.http.atom_xml import XmlWriter, child, children, text_of, type_of
from busbar.model.atom import INSTANCE
from busbar.model.entities import AuthorizationRule, Right
from busbar.model.errors import ArgumentError

_TYPE = "SharedAccessAuthorizationRule"
_RIGHTS = {right.value.lower(): right for right in Right}


def read_access(description: Element) -> tuple[AuthorizationRule, ...]:
    """Read the rules of a description. Raises ArgumentError."""
    listed = child(description, "AuthorizationRules")
    if listed is None:
        return ()
    return tuple(_read_rule(rule) for rule in children(listed, "AuthorizationRule"))


def _read_rule(element: Element) -> AuthorizationRule:
    name = text_of(element, "KeyName")
    if name is None:
        raise ArgumentError("An AuthorizationRule has no KeyName.")
    if type_of(element) not in ("", _TYPE):
        raise ArgumentError(
            f"The AuthorizationRule '{name}' has the type '{type_of(element)[:60]}'; it must be '{_TYPE}'."
        )
    return AuthorizationRule(
        name,
        _read_rights(element, name),
        text_of(element, "PrimaryKey") or "",
        text_of(element, "SecondaryKey") or "",
    )


def _read_rights(element: Element, name: str) -> frozenset[Right]:
    listed = child(element, "Rights")
    rights: set[Right] = set()
    for item in children(listed, "AccessRights") if listed is not None else ():
        text = (item.text or "").strip()
        right = _RIGHTS.get(text.lower())
        if right is None:
            raise ArgumentError(
                f"The AuthorizationRule '{name}' has the right '{text[:40]}'; there are Send, Listen and Manage."
            )
        rights.add(right)
    return frozenset(rights)


def write_access(xml: XmlWriter, rules: tuple[AuthorizationRule, ...]) -> None:
    if not rules:
        xml.element("AuthorizationRules")
        return
    with xml.inside("AuthorizationRules"):
        for rule in rules:
            with xml.inside("AuthorizationRule", {"i:type": _TYPE, "xmlns:i": INSTANCE}):
                xml.element("ClaimType", "SharedAccessKey")
                xml.element("ClaimValue", "None")
                with xml.inside("Rights"):
                    for right in Right:
                        if right in rule.rights:
                            xml.element("AccessRights", right.value)
                xml.element("CreatedTime", write_time(rule.created))
                xml.element("ModifiedTime", write_time(rule.modified))
                xml.element("KeyName", rule.name)
                xml.element("PrimaryKey", rule.primary_key)
                xml.element("SecondaryKey", rule.secondary_key)
