"""The parts of forms: labelled inputs, the hidden token, and pages that ask before something is destroyed."""

from __future__ import annotations

from collections.abc import Sequence

from busbar.console.access import CSRF_FIELD
from busbar.console.html import Content, Markup, tag
from busbar.console.layout import notice, page

Choices = Sequence[tuple[str, str]]
"""Values and their labels."""


def form(
    action: str,
    csrf: str,
    *content: Content,
    submit: str,
    cancel: tuple[str, str] | None = None,
    danger: bool = False,
    **attributes: str,
) -> Markup:
    """A form that is sent to `action`; `cancel` is a label and where it leads."""
    return tag(
        "form",
        tag("input", type="hidden", name=CSRF_FIELD, value=csrf),
        content,
        tag(
            "p",
            tag("button", submit, type="submit", class_="danger" if danger else None),
            tag("a", cancel[0], href=cancel[1]) if cancel else None,
        ),
        method="post",
        action=action,
        autocomplete="off",
        **attributes,
    )


def hidden(name: str, value: str) -> Markup:
    return tag("input", type="hidden", name=name, value=value)


def line(
    name: str,
    label: str,
    hint: str,
    value: str,
    *,
    required: bool = False,
    focus: bool = False,
    placeholder: str = "",
) -> Markup:
    box = tag(
        "input",
        type="text",
        id=name,
        name=name,
        value=value,
        required=required,
        autofocus=focus,
        placeholder=placeholder or None,
        spellcheck="false",
        aria_describedby=f"{name}-hint" if hint else None,
    )
    return labelled(name, label, hint, box)


def lines(
    name: str, label: str, hint: str, value: str, *, rows: int = 4, placeholder: str = "", focus: bool = False
) -> Markup:
    box = tag(
        "textarea",
        # A browser drops the first line break of the content.
        f"\n{value}",
        id=name,
        name=name,
        rows=rows,
        placeholder=placeholder or None,
        autofocus=focus,
        spellcheck="false",
        aria_describedby=f"{name}-hint" if hint else None,
    )
    return labelled(name, label, hint, box)


def choice(name: str, label: str, hint: str, value: str, choices: Choices) -> Markup:
    options = [tag("option", shown, value=each, selected=each == value) for each, shown in choices]
    box = tag("select", options, id=name, name=name, aria_describedby=f"{name}-hint" if hint else None)
    return labelled(name, label, hint, box)


def labelled(name: str, label: str, hint: str, box: Markup) -> Markup:
    return tag(
        "div",
        tag("label", label, for_=name),
        box,
        tag("small", hint, id=f"{name}-hint") if hint else None,
        class_="field",
    )


def check_box(name: str, label: str, hint: str, ticked: bool) -> Markup:
    return tag(
        "div",
        tag(
            "input",
            type="checkbox",
            id=name,
            name=name,
            value="true",
            checked=ticked,
            aria_describedby=f"{name}-hint" if hint else None,
        ),
        tag("label", label, for_=name),
        tag("small", hint, id=f"{name}-hint") if hint else None,
        class_="box",
    )


def group(legend: str, boxes: Sequence[Markup]) -> Markup:
    return tag("fieldset", tag("legend", legend), boxes)


def confirmation_page(
    title: str,
    text: str,
    *extra: Content,
    action: str,
    csrf: str,
    submit: str,
    keep: tuple[str, str],
    place: str,
    trail: Sequence[Markup],
    refusal: str = "",
) -> str:
    """A page that asks before something is destroyed. `keep` is the way out: its label and where it leads."""
    return page(
        title,
        notice(refusal, bad=True) if refusal else None,
        tag("p", text),
        form(action, csrf, extra, submit=submit, cancel=keep, danger=True),
        place=place,
        trail=trail,
    )
