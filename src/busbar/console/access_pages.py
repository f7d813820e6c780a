"""The authorization rules of an entity. Keys are shown for one rule at a time, after a click."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.console.access import CSRF_FIELD
from busbar.console.form_parts import hidden
from busbar.console.html import Markup, tag
from busbar.console.layout import badge, nothing, page, path_of, section, table, tabs, trail_to
from busbar.console.namespace import AccessRule, Address


def access_page(
    address: Address, rules: Sequence[AccessRule], *, shown: AccessRule | None = None, csrf: str, place: str
) -> str:
    """The rules; `shown` is the one whose keys were asked for."""
    rows = [
        (
            rule.name,
            tag("span", [badge(right) for right in rule.rights], class_="badges"),
            _show(address, rule, csrf),
        )
        for rule in rules
    ]
    return page(
        address.name,
        tag("p", tag("span", address.kind, class_="badge kind")),
        tabs(address, "access"),
        _keys(address, shown) if shown is not None else None,
        section(
            "Authorization rules",
            table(("Name", "Rights", "Keys"), rows)
            if rows
            else nothing(
                f"The {address.kind} has no rules of its own: the rules of the namespace apply to it in any case."
            ),
        ),
        place=place,
        trail=trail_to(address),
    )


def _show(address: Address, rule: AccessRule, csrf: str) -> Markup:
    return tag(
        "form",
        hidden(CSRF_FIELD, csrf),
        hidden("rule", rule.name),
        tag("button", "Show keys", type="submit", class_="quiet", aria_label=f"Show the keys of {rule.name}"),
        method="post",
        action=path_of(address, "access"),
        class_="inline",
    )


def _keys(address: Address, rule: AccessRule) -> Markup:
    values = {
        "Primary key": rule.primary_key,
        "Secondary key": rule.secondary_key,
        "Connection string": rule.connection_string,
    }
    rows = [
        tag("div", tag("dt", name), tag("dd", tag("code", value))) for name, value in values.items() if value
    ]
    return section(
        f"Keys of {rule.name}",
        tag("dl", rows, class_="wide"),
        tag("p", tag("a", "Hide them", href=path_of(address, "access"))),
    )
