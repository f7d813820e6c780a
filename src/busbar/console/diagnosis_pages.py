"""Why a message did not arrive: a test of the rules of a topic, and the history of a message."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.console.form_parts import form, line, lines
from busbar.console.html import Markup, tag
from busbar.console.layout import (
    badge,
    kind_line,
    nothing,
    notice,
    page,
    path_of,
    section,
    table,
    tabs,
    trail_to,
)
from busbar.console.namespace import (
    Address,
    DescribedMessage,
    Entity,
    EntityType,
    StepSummary,
    SubscriptionVerdict,
)

HISTORY = "/history"
DONE = {"on": "All entities record their history from now on.", "off": "No entity records its history now."}


def rule_test_page(
    entity: Entity,
    message: DescribedMessage,
    verdicts: Sequence[SubscriptionVerdict] | None,
    *,
    place: str,
    refusal: str = "",
) -> str:
    topic = entity.address
    return page(
        topic.name,
        kind_line(entity),
        tabs(entity, "test"),
        notice(refusal, bad=True) if refusal else None,
        section(
            "Which subscriptions get a message?",
            nothing(
                "Nothing is sent. Give the id of a message that a subscription still has, or describe a message."
            ),
            _question_form(topic, message),
        ),
        _verdicts(topic, verdicts) if verdicts is not None else None,
        place=place,
        trail=trail_to(topic),
    )


def _question_form(topic: Address, message: DescribedMessage) -> Markup:
    return tag(
        "form",
        tag("input", type="hidden", name="name", value=topic.name),
        line(
            "id",
            "Message id",
            "Of a message that is there, or that a tap keeps. Leave it empty to describe one.",
            message.message_id,
            focus=True,
        ),
        line("subject", "Subject", "Of the message that you describe.", message.subject),
        lines(
            "properties",
            "Application properties",
            'A line for each: region=eu. Numbers, true and false are such values; "5" in quotes is a text.',
            message.properties,
            rows=3,
        ),
        tag("p", tag("button", "Test rules", type="submit", name="asked", value="1")),
        action="/topic/test",
        autocomplete="off",
    )


def _verdicts(topic: Address, verdicts: Sequence[SubscriptionVerdict]) -> Markup:
    rows = [
        (
            tag(
                "a", each.name, href=path_of(Address(EntityType.SUBSCRIPTION, each.name, topic.name), "rules")
            ),
            badge("gets it", "good") if each.selected else badge("does not get it", "warn"),
            tag("ul", [tag("li", tag("b", rule), ": ", reason) for rule, reason in each.reasons])
            if each.reasons
            else nothing("It has no rules."),
        )
        for each in verdicts
    ]
    shown = (
        table(("Subscription", "Verdict", "Rules"), rows)
        if rows
        else nothing("The topic has no subscriptions: every message is dropped.")
    )
    return section("Subscriptions", shown)


def history_page(
    message_id: str,
    steps: Sequence[StepSummary] | None,
    recorded: Sequence[str],
    *,
    done: str,
    csrf: str,
    place: str,
) -> str:
    return page(
        "History of a message",
        notice(DONE[done]) if done in DONE else None,
        nothing(
            "What happened to a message, when, and by whom: sent, copied, delivered, abandoned, forwarded, dead-lettered, "
            "completed. Entities that record their history have it."
        ),
        tag(
            "form",
            line(
                "id", "Message id", "Also of a message that is gone.", message_id, required=True, focus=True
            ),
            tag("p", tag("button", "Show history", type="submit")),
            action=HISTORY,
            autocomplete="off",
        ),
        _steps(message_id, steps) if steps is not None else None,
        _recording(recorded, csrf),
        place=place,
        section=HISTORY,
    )


def _steps(message_id: str, steps: Sequence[StepSummary]) -> Markup:
    columns = ("Time", "Entity", "Sequence number", "What", "Reason", "By")
    rows = [(step.time, step.entity, step.number, step.what, step.reason, step.client) for step in steps]
    shown = (
        table(columns, rows, frozenset(("Sequence number",)))
        if rows
        else nothing(
            "Nothing is recorded of it. It came before the recording, or to an entity that does not record."
        )
    )
    return section(f"Message {message_id}", shown)


def _recording(recorded: Sequence[str], csrf: str) -> Markup:
    if not recorded:
        text = "No entity records its history. What happened so far is not known; what happens from now on can be."
    elif recorded == ["*"]:
        text = "All entities record their history, in memory: the last steps, until their broker ends."
    else:
        text = f"These entities record their history: {', '.join(recorded)}."
    return section(
        "Recording",
        tag("p", text),
        form(f"{HISTORY}/record", csrf, submit="Record all entities") if recorded != ["*"] else None,
        form(f"{HISTORY}/stop", csrf, submit="Stop recording") if recorded else None,
    )
