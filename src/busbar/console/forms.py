"""The forms that create an entity: the fields of each kind, and how a submitted form is read.

A field is a property of model/properties.py, by its name in the management API. An empty field is not sent, and gets the
service's default. Values are not checked here: the broker checks them, and its error is shown with the form and its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from busbar.console.namespace import EntityType
from busbar.model.entities import (
    EntityDescription,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.properties import properties_of


@dataclass(frozen=True, slots=True)
class Field:
    """A line of text, or one of the choices."""

    element: str
    label: str
    hint: str
    placeholder: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """Values and their labels; the first is selected at the start."""


@dataclass(frozen=True, slots=True)
class CheckBox:
    element: str
    label: str
    hint: str


@dataclass(frozen=True, slots=True)
class Form:
    kind: EntityType
    fields: tuple[Field, ...]
    boxes: tuple[CheckBox, ...]


NAME = "name"

_SIZES = tuple((str(gigabytes * 1024), f"{gigabytes} GB") for gigabytes in range(1, 6))
_FIELDS: dict[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "MaxSizeInMegabytes": ("Maximum size", "", _SIZES),
    "LockDuration": ("Lock duration", "1m", ()),
    "DefaultMessageTimeToLive": ("Time to live", "unlimited", ()),
    "MaxDeliveryCount": ("Maximum deliveries", "10", ()),
}
"""Label, placeholder and choices of each."""
_BOXES = {
    "EnablePartitioning": "Enable partitioning",
    "RequiresSession": "Requires session",
    "RequiresDuplicateDetection": "Requires duplicate detection",
    "DeadLetteringOnMessageExpiration": "Dead-letter on expiry",
}


def _form(kind: EntityType, description: type[EntityDescription]) -> Form:
    """The fields and boxes of the properties that this kind of entity has."""
    there = {row.element: row.help for row in properties_of(description)}
    return Form(
        kind,
        tuple(
            Field(element, label, there[element], placeholder, choices)
            for element, (label, placeholder, choices) in _FIELDS.items()
            if element in there
        ),
        tuple(
            CheckBox(element, label, there[element]) for element, label in _BOXES.items() if element in there
        ),
    )


FORMS = {
    form.kind: form
    for form in (
        _form(EntityType.QUEUE, QueueDescription),
        _form(EntityType.TOPIC, TopicDescription),
        _form(EntityType.SUBSCRIPTION, SubscriptionDescription),
    )
}


@dataclass(frozen=True, slots=True)
class FormValues:
    """The values of a submitted form."""

    name: str
    texts: Mapping[str, str]
    ticked: frozenset[str]

    @property
    def values(self) -> dict[str, str]:
        """The properties of the new entity."""
        return {
            **{element: text for element, text in self.texts.items() if text},
            **dict.fromkeys(sorted(self.ticked), "true"),
        }


def blank(form: Form) -> FormValues:
    return FormValues(
        "", {field.element: field.choices[0][0] for field in form.fields if field.choices}, frozenset()
    )


def read(form: Form, sent: Mapping[str, str]) -> FormValues:
    """Read a submitted form. Fields that the form does not have are ignored."""
    texts = {field.element: sent.get(field.element, "").strip() for field in form.fields}
    ticked = frozenset(box.element for box in form.boxes if box.element in sent)
    return FormValues(sent.get(NAME, "").strip(), texts, ticked)
