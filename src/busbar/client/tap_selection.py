"""What a reader of a tap needs of each page: the broker leaves out the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PropertyValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TapSelection:
    """Conditions that a message has to meet, and the parts that come with it. All conditions have to hold.

    `since` and `until` are enqueued times in ms, both included. Lists hold the accepted values; None is no condition.
    `properties` has the accepted values of application properties, with None for "absent or null".
    """

    bodies: bool = True
    application_properties: bool = True
    states: tuple[str, ...] | None = None
    since: int | None = None
    until: int | None = None
    sessions: tuple[str, ...] | None = None
    subjects: tuple[str, ...] | None = None
    properties: Mapping[str, tuple[PropertyValue, ...]] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        return self == TapSelection()

    def to_body(self) -> dict[str, object]:
        """The map `select` of a request."""
        body: dict[str, object] = {}
        if not self.bodies:
            body["bodies"] = False
        if not self.application_properties:
            body["application-properties"] = False
        for key, values in (
            ("states", self.states),
            ("sessions", self.sessions),
            ("subjects", self.subjects),
        ):
            if values is not None:
                body[key] = list(values)
        for key, time in (("since", self.since), ("until", self.until)):
            if time is not None:
                body[key] = time
        if self.properties:
            body["properties"] = {name: list(values) for name, values in self.properties.items()}
        return body
