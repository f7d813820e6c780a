"""What a form sends: what was typed and ticked, and nothing that it does not have."""

from __future__ import annotations

import pytest

from busbar.cli.console_namespace import KINDS
from busbar.console.forms import CHANGE_FORMS, FORMS, blank, changes, filled, read, shown_values
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


@pytest.mark.parametrize("kind", EntityType)
def test_a_change_form_has_what_can_be_changed_and_nothing_else(kind: EntityType) -> None:
    form = CHANGE_FORMS[kind]
    changeable = {item.element for item in KINDS[kind].properties if not item.fixed}
    assert {field.element for field in form.fields} | {box.element for box in form.boxes} == changeable


def test_a_change_is_what_differs_from_what_was_shown() -> None:
    form = CHANGE_FORMS[EntityType.QUEUE]
    before = filled(form, "orders", {"LockDuration": "1m", "MaxDeliveryCount": "10", "EnableExpress": "true"})
    sent = {
        **shown_values(form, before),
        **before.texts,
        "LockDuration": " 2m ",
        "EnableBatchedOperations": "true",
    }
    assert changes(form, sent) == {
        "LockDuration": "2m",
        "EnableBatchedOperations": "true",
        "EnableExpress": "false",  # its box is not ticked any more
    }
    assert changes(form, {"LockDuration": "2m"}) == {}  # what no form showed
