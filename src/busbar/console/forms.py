"""The forms that create an entity and change it: the fields of each kind, and how a submitted form is read.

A field is a property of model/properties.py, by its name in the management API. An empty field is not sent, and gets the
service's default. Values are not checked here: the broker checks them, and its error is shown with the form and its values.

A form for a change has all properties that can be changed, and beside each, hidden, the value that was shown. Only what
differs from that is sent. So two people who change different properties do not undo each other's change.
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
from busbar.model.properties import EntityProperty, PropertyType, properties_of


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
SHOWN = "shown."
"""Before the name of a property: the value that the form showed."""

SIZE_HINT = "How much it can hold; with partitioning, each of the 16 fragments."
_SIZES = tuple((str(gigabytes * 1024), f"{gigabytes} GB") for gigabytes in range(1, 6))
_FIELDS: dict[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "MaxSizeInMegabytes": ("Maximum size", "", _SIZES),
    "LockDuration": ("Lock duration", "1m", ()),
    "DefaultMessageTimeToLive": ("Time to live", "unlimited", ()),
    "MaxDeliveryCount": ("Maximum deliveries", "10", ()),
}
"""Label, placeholder and choices of each."""
_HINTS = {
    "DefaultMessageTimeToLive": "Of messages that have none of their own: 90s, 1h30m, 14d, unlimited.",
    "ForwardTo": "A queue or a topic to which all messages are passed on. Empty: they stay.",
    "ForwardDeadLetteredMessagesTo": "A queue or a topic to which dead letters are passed on. Empty: they stay.",
    "AutoDeleteOnIdle": "It is deleted when nobody used it for so long: 5m or more, or unlimited.",
    "Status": "ReceiveDisabled: clients can only send. SendDisabled: they can only receive. Disabled: neither.",
    "EnableBatchedOperations": "Writes share commits with those of other entities. Otherwise each has a commit of its own.",
}
"""Where a form needs other words than the flag of a command."""
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
            Field(
                element,
                label,
                SIZE_HINT if choices else _HINTS.get(element, there[element]),
                placeholder,
                choices,
            )
            for element, (label, placeholder, choices) in _FIELDS.items()
            if element in there
        ),
        tuple(
            CheckBox(element, label, there[element]) for element, label in _BOXES.items() if element in there
        ),
    )


DESCRIPTIONS: dict[EntityType, type[EntityDescription]] = {
    EntityType.QUEUE: QueueDescription,
    EntityType.TOPIC: TopicDescription,
    EntityType.SUBSCRIPTION: SubscriptionDescription,
}
FORMS = {kind: _form(kind, description) for kind, description in DESCRIPTIONS.items()}

_STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")


def _label(element: str) -> str:
    named = _FIELDS.get(element, ("", "", ()))[0] or _BOXES.get(element, "")
    words = "".join(f" {char.lower()}" if char.isupper() else char for char in element).strip()
    return named or words[:1].upper() + words[1:]


def _change_field(row: EntityProperty) -> Field:
    choices = tuple((name, name) for name in _STATUSES) if row.type is PropertyType.STATUS else ()
    return Field(row.element, _label(row.element), _HINTS.get(row.element, row.help), "", choices)


def _change_form(kind: EntityType, description: type[EntityDescription]) -> Form:
    """The properties of this kind of entity that can be changed."""
    rows = [row for row in properties_of(description) if not (row.fixed or row.only_atom)]
    return Form(
        kind,
        tuple(_change_field(row) for row in rows if row.type is not PropertyType.BOOLEAN),
        tuple(
            CheckBox(row.element, _label(row.element), _HINTS.get(row.element, row.help))
            for row in rows
            if row.type is PropertyType.BOOLEAN
        ),
    )


CHANGE_FORMS = {kind: _change_form(kind, description) for kind, description in DESCRIPTIONS.items()}


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


def filled(form: Form, name: str, values: Mapping[str, str]) -> FormValues:
    """A form with the values of an entity."""
    return FormValues(
        name,
        {field.element: values.get(field.element, "") for field in form.fields},
        frozenset(box.element for box in form.boxes if values.get(box.element) == "true"),
    )


def shown_values(form: Form, values: FormValues) -> dict[str, str]:
    """The hidden fields of a form for a change."""
    boxes = {box.element: "true" if box.element in values.ticked else "false" for box in form.boxes}
    return {f"{SHOWN}{element}": text for element, text in {**values.texts, **boxes}.items()}


def changes(form: Form, sent: Mapping[str, str]) -> dict[str, str]:
    """What a submitted form changes."""
    values = read(form, sent)
    now = shown_values(form, values)
    return {
        key.removeprefix(SHOWN): text
        for key, text in now.items()
        if key in sent and text != sent[key].strip()
    }
