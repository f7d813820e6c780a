"""What actions change."""

from __future__ import annotations

import pytest

from busbar.model.errors import ArgumentError
from busbar.rules.syntax import SETTABLE, SYSTEM_PROPERTIES, check_action
from busbar.rules.values import EvaluationError, Instant, Span, Value
from tests.unit.rules.sample import GUID, Sample, act

MESSAGE = Sample(
    {"Size": 7, "share": 0.5, "color": "red", "flag": True, "at": Instant(0), "id": GUID, "wait": Span(1000)},
    {"label": "old", "messageid": "m"},
)


@pytest.mark.parametrize(
    ("expression", "changed"),
    [
        ("SET new = 1", {"new": 1}),
        ("SET size = size + 1", {"size": 8}),
        ("SET size = size + 1; SET size = size * 2; SET other = size", {"size": 16, "other": 16}),
        ("SET size = '9'", {"size": 9}),
        ("SET size = 9.0", {"size": 9}),
        ("SET size = 9.5", {"size": 9.5}),
        ("SET size = 'large'", {"size": "large"}),
        ("SET size = '99999999999999999999'", {"size": "99999999999999999999"}),
        ("SET share = 2", {"share": 2.0}),
        ("SET share = '0.25'", {"share": 0.25}),
        ("SET color = 5", {"color": "5"}),
        ("SET color = 5.5", {"color": "5.5"}),
        ("SET color = newid()", {"color": str(GUID)}),
        ("SET color = at", {"color": "1970-01-01T00:00:00.000Z"}),
        ("SET color = wait", {"color": "PT1S"}),
        ("SET flag = 'FALSE'", {"flag": False}),
        ("SET flag = 'maybe'", {"flag": "maybe"}),
        ("SET at = '1970-01-01T00:00:01Z'", {"at": Instant(1000)}),
        ("SET id = 'nobody'", {"id": "nobody"}),
        ("SET new = newid()", {"new": GUID}),
        ("SET new = color = 'red'", {"new": True}),
        ("SET color = missing", {"color": None}),
        ("SET color = NULL", {"color": None}),
        ("REMOVE color", {"color": None}),
        ("REMOVE user.[Color] REMOVE missing", {"color": None, "missing": None}),
        ("REMOVE color; SET new = color + 'x'", {"color": None, "new": None}),
        ("SET new = sys.Label + '!'", {"new": "old!"}),
    ],
)
def test_user_properties(expression: str, changed: dict[str, Value]) -> None:
    changes = act(expression, MESSAGE)
    found = {name: value for name, (_, value) in changes.user.items()}
    assert found == changed
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in changed.items()}
    assert changes.system == {}
    assert MESSAGE.user["size"] == 7 and MESSAGE.user["color"] == "red"


@pytest.mark.parametrize(
    ("expression", "changed"),
    [
        ("SET sys.Label = 'new'", {"label": "new"}),
        (
            "SET sys.Subject = sys.Label + sys.subject; SET sys.Label = sys.Subject + '!'",
            {"label": "oldold!"},
        ),
        ("SET sys.To = 5", {"to": "5"}),
        ("SET sys.CorrelationId = newid()", {"correlationid": str(GUID)}),
        ("SET sys.SessionId = NULL", {"sessionid": None}),
        ("SET sys.MessageId = sys.MessageId + '-2'", {"messageid": "m-2"}),
        ("SET sys.ForcePersistence = TRUE", {"forcepersistence": True}),
        (
            "SET sys.ScheduledEnqueueTimeUtc = '1970-01-01T00:00:02Z'",
            {"scheduledenqueuetimeutc": Instant(2000)},
        ),
        ("SET sys.ScheduledEnqueueTimeUtc = at", {"scheduledenqueuetimeutc": Instant(0)}),
    ],
)
def test_system_properties(expression: str, changed: dict[str, Value]) -> None:
    changes = act(expression, MESSAGE)
    assert changes.system == changed and changes.user == {}


def test_the_spelling_of_a_new_property_is_the_actions() -> None:
    assert act("SET [My Name] = 1", MESSAGE).user == {"my name": ("My Name", 1)}


def test_parameters() -> None:
    assert act("SET new = @x + 1", MESSAGE, **{"@x": 1}).user == {"new": ("new", 2)}


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("SET a = 1 / 0", "division"),
        ("SET a = color + 1", "not for"),
        ("SET sys.ForcePersistence = 'yes'", "cannot be a text"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'soon'", "cannot be a text"),
        ("SET sys.ScheduledEnqueueTimeUtc = 5", "cannot be a number"),
        ("SET sys.MessageId = missing", "needs an id"),
        ("SET sys.MessageId = ''", "needs an id"),
        ("SET a = @x", "no parameter"),
    ],
)
def test_actions_that_fail(expression: str, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        act(expression, MESSAGE)


@pytest.mark.parametrize("name", sorted(SYSTEM_PROPERTIES))
def test_which_system_properties_can_be_set(name: str) -> None:
    if name in SETTABLE:
        check_action(f"SET sys.{name} = 'x'")
    else:
        with pytest.raises(ArgumentError, match="cannot be set"):
            check_action(f"SET sys.{name} = 'x'")
    with pytest.raises(ArgumentError, match="cannot be removed"):
        check_action(f"REMOVE sys.{name}")
