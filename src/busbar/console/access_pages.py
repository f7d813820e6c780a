"""The authorization rules of an entity or of the namespace. Keys are shown for one rule at a time, after a click."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from busbar.console.access import CSRF_FIELD
from busbar.console.form_parts import check_box, choice, confirmation_page, form, group, hidden, line
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    HOME,
    badge,
    button_to,
    kind_line,
    nothing,
    notice,
    page,
    path_of,
    section,
    table,
    tabs,
    trail_below,
    trail_to,
)
from busbar.console.namespace import AccessRule, Address, Entity

TITLE = "Access to the namespace"
RIGHTS = ("Send", "Listen", "Manage")
KEYS = (("primary", "The primary key"), ("secondary", "The secondary key"))
DONE = {"created": "The rule was created, with two new keys.", "deleted": "The rule was deleted."}


def access_path(owner: Address | None, action: str = "", **more: str) -> str:
    """The address of a page about the rules of an entity, or of the namespace."""
    end = f"access/{action}" if action else "access"
    if owner is not None:
        return path_of(owner, end, **more)
    return f"/{end}?{urlencode(more)}" if more else f"/{end}"


def access_page(
    entity: Entity | None,
    rules: Sequence[AccessRule],
    *,
    shown: AccessRule | None = None,
    done: str = "",
    csrf: str,
    place: str,
) -> str:
    """The rules; `shown` is the one whose keys were asked for."""
    owner = entity.address if entity is not None else None
    rows = [
        (
            rule.name,
            tag("span", [badge(right) for right in rule.rights], class_="badges"),
            rule.updated,
            _show(owner, rule, csrf),
            tag(
                "span",
                tag(
                    "a",
                    "Renew …",
                    href=access_path(owner, "renew", rule=rule.name),
                    aria_label=f"Renew a key of {rule.name}",
                ),
                " ",
                tag(
                    "a",
                    "Delete …",
                    href=access_path(owner, "delete", rule=rule.name),
                    class_="danger",
                    aria_label=f"Delete the rule {rule.name}",
                ),
            ),
        )
        for rule in rules
    ]
    return page(
        owner.name if owner is not None else TITLE,
        [kind_line(entity), tabs(entity, "access")] if entity is not None else None,
        notice(DONE[done]) if done in DONE else None,
        _keys(owner, shown) if shown is not None else None,
        section(
            "Authorization rules",
            table(("Name", "Rights", "Changed", "Keys", "Change"), rows)
            if rows
            else nothing("There are no rules here. Those of the namespace apply to all entities."),
            action=button_to("New access rule", access_path(owner, "new")),
        ),
        place=place,
        trail=trail_to(owner) if owner is not None else (),
        section="" if owner is not None else "/access",
    )


def new_rule_page(
    owner: Address | None, name: str, rights: Sequence[str], *, csrf: str, place: str, refusal: str = ""
) -> str:
    boxes = [check_box(f"right-{right}", right, "", right in rights) for right in RIGHTS]
    return page(
        "New access rule",
        notice(refusal, bad=True) if refusal else None,
        form(
            access_path(owner, "new"),
            csrf,
            line(
                "rule",
                "Name",
                "Clients name it together with one of its keys.",
                name,
                required=True,
                focus=True,
            ),
            group("Rights", boxes),
            submit="Create rule",
            cancel=("Cancel", access_path(owner)),
        ),
        place=place,
        trail=_trail(owner),
    )


def renew_page(owner: Address | None, rule: str, *, csrf: str, place: str) -> str:
    return confirmation_page(
        f"Renew a key of {rule}?",
        "The key is replaced by a new one at once. Clients that use the old one lose their links.",
        choice("which", "Which key", "", "secondary", KEYS),
        action=access_path(owner, "renew", rule=rule),
        csrf=csrf,
        submit="Renew key",
        keep=("Keep it", access_path(owner)),
        place=place,
        trail=_trail(owner),
    )


def rule_removal_page(owner: Address | None, rule: str, *, csrf: str, place: str, refusal: str = "") -> str:
    return confirmation_page(
        f"Delete the access rule {rule}?",
        "Clients that use its keys lose their links at once. This cannot be undone.",
        action=access_path(owner, "delete", rule=rule),
        csrf=csrf,
        submit="Delete rule",
        keep=("Keep it", access_path(owner)),
        place=place,
        trail=_trail(owner),
        refusal=refusal,
    )


def _trail(owner: Address | None) -> list[Markup]:
    way = trail_below(owner) if owner is not None else [HOME]
    return [*way, tag("a", "Access", href=access_path(owner))]


def _show(owner: Address | None, rule: AccessRule, csrf: str) -> Markup:
    return tag(
        "form",
        hidden(CSRF_FIELD, csrf),
        hidden("rule", rule.name),
        tag("button", "Show keys", type="submit", class_="quiet", aria_label=f"Show the keys of {rule.name}"),
        method="post",
        action=access_path(owner),
        class_="inline",
    )


def _keys(owner: Address | None, rule: AccessRule) -> Markup:
    rows = [tag("div", tag("dt", name), tag("dd", tag("code", value))) for name, value in rule.keys.items()]
    return section(
        f"Keys of {rule.name}",
        tag("dl", rows, class_="wide"),
        tag("p", tag("a", "Hide them", href=access_path(owner))),
    )
