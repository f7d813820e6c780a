"""The rules of a subscription: a list, a form for one, and the question before one is deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busbar.console.form_parts import choice, confirmation_page, form, line, lines
from busbar.console.html import Markup, tag
from busbar.console.layout import (
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
from busbar.console.namespace import Address, Entity, RuleValues

KINDS = (
    ("SqlFilter", "SQL expression"),
    ("CorrelationFilter", "Properties that must be equal"),
    ("TrueFilter", "Every message"),
    ("FalseFilter", "No message"),
)
SYSTEM = (
    ("CorrelationId", "Correlation id"),
    ("MessageId", "Message id"),
    ("To", "To"),
    ("ReplyTo", "Reply to"),
    ("Label", "Subject"),
    ("SessionId", "Session id"),
    ("ReplyToSessionId", "Reply to session id"),
    ("ContentType", "Content type"),
)
DONE = {
    "created": "The rule was created.",
    "changed": "The rule was changed.",
    "deleted": "The rule was deleted.",
}


def rules_page(entity: Entity, rules: Sequence[RuleValues], *, done: str = "", place: str) -> str:
    subscription = entity.address
    rows = [
        (
            tag("a", rule.name, href=path_of(subscription, "rule/edit", rule=rule.name)),
            tag("code", rule.text),
            tag("code", rule.action) if rule.action else tag("span", "none", class_="soft"),
            tag(
                "a",
                "Delete …",
                href=path_of(subscription, "rule/delete", rule=rule.name),
                class_="danger",
                aria_label=f"Delete the rule {rule.name}",
            ),
        )
        for rule in rules
    ]
    return page(
        subscription.name,
        kind_line(entity),
        tabs(entity, "rules"),
        notice(DONE[done]) if done in DONE else None,
        section(
            "Rules",
            nothing("A message is copied into the subscription if one of its rules selects it."),
            table(("Name", "Filter", "Action", "Delete"), rows)
            if rows
            else notice("There are no rules, so the subscription gets no messages.", bad=True),
            action=button_to("New rule", path_of(subscription, "rule/new")),
        ),
        place=place,
        trail=trail_to(subscription),
    )


def rule_page(
    subscription: Address, rule: RuleValues, *, is_new: bool, csrf: str, place: str, refusal: str = ""
) -> str:
    title = "New rule" if is_new else rule.name
    action = (
        path_of(subscription, "rule/new") if is_new else path_of(subscription, "rule/edit", rule=rule.name)
    )
    return page(
        title,
        notice(refusal, bad=True) if refusal else None,
        form(
            action,
            csrf,
            line("rule", "Name", "Letters, digits, '-', '.' and '_'.", rule.name, required=True, focus=True)
            if is_new
            else None,
            choice("kind", "Filter", "Which messages the rule selects.", rule.kind, KINDS),
            lines(
                "sql",
                "SQL expression",
                "For a filter of this kind: amount > 100 AND region = 'eu'",
                rule.sql,
                rows=3,
            ),
            _equal_properties(rule),
            lines(
                "action",
                "Action",
                "What is changed in the copies: SET seen = 'yes'; REMOVE internal. Empty: nothing.",
                rule.action,
                rows=2,
            ),
            submit="Create rule" if is_new else "Change rule",
            cancel=("Cancel", path_of(subscription, "rules")),
        ),
        place=place,
        trail=[*trail_below(subscription), _rules_link(subscription)],
    )


def rule_delete_page(subscription: Address, rule: RuleValues, *, csrf: str, place: str) -> str:
    return confirmation_page(
        f"Delete the rule {rule.name}?",
        f"The subscription {subscription.name} then gets no messages for this filter: {rule.text}. "
        "Messages that it has stay.",
        action=path_of(subscription, "rule/delete", rule=rule.name),
        csrf=csrf,
        submit="Delete rule",
        keep=("Keep it", path_of(subscription, "rules")),
        place=place,
        trail=[*trail_below(subscription), _rules_link(subscription)],
    )


def read_rule(sent: Mapping[str, str], name: str) -> RuleValues:
    """The rule of a submitted form."""
    return RuleValues(
        name.strip(),
        sent.get("kind", ""),
        sent.get("sql", "").strip(),
        {element: sent[element].strip() for element, _ in SYSTEM if sent.get(element, "").strip()},
        sent.get("properties", "").strip(),
        sent.get("action", "").strip(),
    )


def _equal_properties(rule: RuleValues) -> Markup:
    system = [line(element, label, "", rule.system.get(element, "")) for element, label in SYSTEM]
    return tag(
        "details",
        tag("summary", "Properties that must be equal"),
        tag("div", system, class_="pairs"),
        lines(
            "properties",
            "Application properties",
            "A line for each: region=eu, or with a type: amount:int=100",
            rule.properties,
            rows=3,
        ),
        open=rule.kind == "CorrelationFilter",
        id="equal",
    )


def _rules_link(subscription: Address) -> Markup:
    return tag("a", "Rules", href=path_of(subscription, "rules"))
