"""The table of entity properties: complete, and in agreement with the descriptions."""

from __future__ import annotations

from dataclasses import fields

import pytest

from busbar.model.entities import (
    EntityDescription,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from busbar.model.properties import ELEMENTS, FIXED, PROPERTIES, PropertyType, properties_of

KINDS: list[type[EntityDescription]] = [QueueDescription, TopicDescription, SubscriptionDescription]
VALUES = {
    PropertyType.BOOLEAN: bool,
    PropertyType.INTEGER: int,
    PropertyType.KILOBYTES: int,
    PropertyType.DURATION: int,
    PropertyType.STATUS: EntityStatus,
    PropertyType.PATH: str,
    PropertyType.TEXT: str,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_description_has_a_row_and_an_element(kind: type[EntityDescription]) -> None:
    rows = properties_of(kind)
    assert {row.attribute for row in rows} == {field.name for field in fields(kind)} - {"authorization_rules"}
    assert {row.element for row in rows} <= set(ELEMENTS[kind])
    assert all(type(getattr(kind(), row.attribute)) is VALUES[row.type] for row in rows)


def test_rows_have_one_name_each_and_say_what_they_are() -> None:
    assert (
        len({row.element for row in PROPERTIES})
        == len({row.attribute for row in PROPERTIES})
        == len(PROPERTIES)
    )
    assert all(row.help.endswith(".") for row in PROPERTIES)
    assert [row.element for row in PROPERTIES if "fixed at creation" in row.help] == [
        row.element for row in FIXED
    ]
