"""HTML that is escaped by its type: text is `str`, and only results of `tag` are `Markup`.

    tag("p", "a < b", class_="note")    <p class="note">a &lt; b</p>

1. A `str` is text: it is escaped everywhere, in content and in attributes.
2. Names of tags and attributes are constants of the code, never data.
3. True is an attribute without a value; False and None are none.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TypeAlias

VOID = frozenset(("input", "link", "meta"))

Attribute = str | int | float | bool | None
Content: TypeAlias = "str | Markup | Iterable[Content] | None"
"""What stands in an element: None is nothing, and several may be nested."""


class Markup:
    """HTML that is not escaped again."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def tag(element: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """An element. `class_` and `for_` are written without the underscore, others with '-' in its place."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if element in VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{''.join(map(_escaped, content))}</{element}>")


def document(root: Markup) -> str:
    return f"<!doctype html>\n{root.text}\n"


def _escaped(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Markup):
        return content.text
    if isinstance(content, str):
        return escape(content)
    return "".join(map(_escaped, content))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
