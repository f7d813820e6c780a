"""The forms that create an entity: which fields each kind has, and how what was sent is read.

A field is a property of the management API by its name there. What is left empty is not sent, and gets the service's
default. Nothing is judged here: the broker knows the rules, and its refusal is shown with the form as it was filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from busbar.console.namespace import EntityType


@dataclass(frozen=True, slots=True)
class Field:
    """A line of text, or one of the choices."""

    element: str
    label: str
    hint: str
    placeholder: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    """Values and what is shown for them; the first is there at the start."""


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

_SIZE = Field(
    "MaxSizeInMegabytes",
    "Maximum size",
    "How much it may hold. With partitioning, each of the 16 fragments may.",
    choices=tuple((str(gigabytes * 1024), f"{gigabytes} GB") for gigabytes in range(1, 6)),
)
_LOCK = Field("LockDuration", "Lock duration", "How long a receiver holds a message: 5s to 5m.", "1m")
_TTL = Field(
    "DefaultMessageTimeToLive",
    "Time to live",
    "How long a message lives that does not say: 90s, 1h30m, 14d, unlimited.",
    "unlimited",
)
_DELIVERIES = Field(
    "MaxDeliveryCount", "Maximum deliveries", "After so many, a message goes to the dead-letter queue.", "10"
)
_PARTITIONING = CheckBox(
    "EnablePartitioning",
    "Enable partitioning",
    "Spread it over 16 fragments in several messaging stores. Fixed at creation.",
)
_SESSION = CheckBox(
    "RequiresSession",
    "Requires session",
    "First in, first out by session id, one receiver for each session. Fixed at creation.",
)
_DUPLICATES = CheckBox(
    "RequiresDuplicateDetection",
    "Requires duplicate detection",
    "Drop messages whose message id was seen in the last ten minutes. Fixed at creation.",
)
_DEAD_LETTERS = CheckBox(
    "DeadLetteringOnMessageExpiration",
    "Dead-letter on expiry",
    "Keep messages that expire in the dead-letter queue.",
)

FORMS = {
    form.kind: form
    for form in (
        Form(
            EntityType.QUEUE,
            (_SIZE, _LOCK, _TTL, _DELIVERIES),
            (_PARTITIONING, _SESSION, _DUPLICATES, _DEAD_LETTERS),
        ),
        Form(EntityType.TOPIC, (_SIZE, _TTL), (_PARTITIONING, _DUPLICATES)),
        Form(EntityType.SUBSCRIPTION, (_LOCK, _TTL, _DELIVERIES), (_SESSION, _DEAD_LETTERS)),
    )
}


@dataclass(frozen=True, slots=True)
class FormValues:
    """What somebody typed and ticked."""

    name: str
    texts: Mapping[str, str]
    ticked: frozenset[str]

    @property
    def values(self) -> dict[str, str]:
        """The properties to create it with."""
        return {
            **{element: text for element, text in self.texts.items() if text},
            **dict.fromkeys(sorted(self.ticked), "true"),
        }


def blank(form: Form) -> FormValues:
    return FormValues(
        "", {field.element: field.choices[0][0] for field in form.fields if field.choices}, frozenset()
    )


def read(form: Form, sent: Mapping[str, str]) -> FormValues:
    """Fields that the form does not have are nobody's."""
    texts = {field.element: sent.get(field.element, "").strip() for field in form.fields}
    ticked = frozenset(box.element for box in form.boxes if box.element in sent)
    return FormValues(sent.get(NAME, "").strip(), texts, ticked)
