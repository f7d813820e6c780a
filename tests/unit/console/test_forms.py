"""What a form sends: what was typed and ticked, and nothing that it does not have."""

from __future__ import annotations

import pytest

from busbar.cli.console_namespace import KINDS
from busbar.console.forms import FORMS, blank, read
from busbar.console.namespace import EntityType


@pytest.mark.parametrize("kind", EntityType)
def test_every_field_is_a_property_that_the_commands_know(kind: EntityType) -> None:
    form = FORMS[kind]
    known = {item.element for item in KINDS[kind].properties}
    assert {field.element for field in form.fields} | {box.element for box in form.boxes} <= known


def test_what_was_typed_and_ticked() -> None:
    sent = {
        "name": " orders ",
        "MaxSizeInMegabytes": "2048",
        "LockDuration": "",
        "EnablePartitioning": "true",
        "Status": "Disabled",
        "csrf": "x",
    }
    filled = read(FORMS[EntityType.QUEUE], sent)
    assert filled.name == "orders"
    assert filled.values == {"MaxSizeInMegabytes": "2048", "EnablePartitioning": "true"}


def test_a_blank_form_asks_for_the_defaults() -> None:
    assert blank(FORMS[EntityType.QUEUE]).values == {"MaxSizeInMegabytes": "1024"}
    assert blank(FORMS[EntityType.SUBSCRIPTION]).values == {}
