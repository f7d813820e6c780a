"""The operations of a subscription's management node on its rules: add, remove, enumerate.

Rules:
1. To add or remove a rule takes Manage, to read them Listen.
2. A rule has one filter: SQL, or a correlation with at least one condition. `1=1` and `1=0` are how clients write the
   filters that let everything or nothing through.
3. Rules are enumerated with numeric descriptors (as ulong), never with symbols: JavaScript compares numbers alone. Those of
   filters have one zero less than the others. There is always an action, an empty one if need be: JavaScript reads it
   unchecked.
4. In a transaction a rule change is checked at once, and made at the commit. Rules of partitioned topics cannot be part of
   one.
5. Values in a correlation keep their types as far as HTTP management can show them too: text, numbers, booleans, times and
   guids.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Final

from busbar.amqp.types import Described, Int, Timestamp, ULong
from busbar.gateway.amqp.enlisting import change_rule
from busbar.gateway.amqp.link_connection import LinkConnection
from busbar.gateway.amqp.management_request import (
    ADD_RULE,
    ENUMERATE_RULES,
    REMOVE_RULE,
    Operations,
    Reply,
    RequestBody,
)
from busbar.gateway.http.atom_values import write_time
from busbar.model.api import EntityView
from busbar.model.entities import (
    CorrelationFilter,
    EntityKind,
    FalseFilter,
    PropertyValue,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    TypedText,
)
from busbar.model.errors import ArgumentError, ArgumentOutOfRange
from busbar.model.names import parent_and_name, rule_path
from busbar.model.sas import LISTEN, MANAGE

RULE_DESCRIPTION: Final = 0x0000_0137_0000_0004
EMPTY_ACTION: Final = 0x0000_0137_0000_0005
SQL_ACTION: Final = 0x0000_0137_0000_0006
SQL_FILTER: Final = 0x0000_0013_7000_0006
TRUE_FILTER: Final = 0x0000_0013_7000_0007
FALSE_FILTER: Final = 0x0000_0013_7000_0008
CORRELATION_FILTER: Final = 0x0000_0013_7000_0009
COMPATIBILITY_LEVEL: Final = Int(20)
LAST_TIME: Final = 253_402_300_799_999
"""The end of the year 9999, in ms."""

_CONSTANT: Final[dict[str, RuleFilter]] = {"1=1": TrueFilter(), "1=0": FalseFilter()}
_CONDITIONS: Final = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)
"""In the order of the described list; CorrelationFilter has them with underscores."""

Value = PropertyValue | TypedText


class RuleOperations:
    def __init__(self, peer: LinkConnection, entity: EntityView, resource: str) -> None:
        self._peer = peer
        self._entity = entity
        self._subscription = entity.path
        self._resource = resource

    @property
    def operations(self) -> Operations:
        return {
            ADD_RULE: (MANAGE, self._add),
            REMOVE_RULE: (MANAGE, self._remove),
            ENUMERATE_RULES: (LISTEN, self._enumerate),
        }

    async def _add(self, body: RequestBody) -> Reply:
        description = RequestBody("rule-description", body.mapping("rule-description"))
        rule = RuleDescription(_read_filter(description), _read_action(description))
        path = rule_path(self._subscription, body.text("rule-name"))
        if body.transaction is not None:
            await change_rule(self._peer, body.transaction, self._entity, (path, rule), self._resource)
        else:
            await self._peer.service.broker.create(path, rule)
        return 200, {}

    async def _remove(self, body: RequestBody) -> Reply:
        path = rule_path(self._subscription, body.text("rule-name"))
        if body.transaction is not None:
            await change_rule(self._peer, body.transaction, self._entity, (path, None), self._resource)
        else:
            await self._peer.service.broker.delete(path)
        return 200, {}

    async def _enumerate(self, body: RequestBody) -> Reply:
        skip, top = body.integer("skip"), body.integer("top")
        if skip < 0 or top < 0:
            raise ArgumentOutOfRange(f"skip is {skip} and top is {top}; they cannot be negative.")
        top = min(top, self._peer.service.limits.max_rules)
        views = await self._peer.service.broker.list(EntityKind.RULE, self._subscription, skip, top)
        rules = [{"rule-description": _described(view)} for view in views]
        return (200, {"rules": rules}) if rules else (204, {})


def _read_filter(description: RequestBody) -> RuleFilter:
    """The filter of a rule: SQL, or a correlation with at least one condition."""
    given = [name for name in ("sql-filter", "correlation-filter") if description.get(name) is not None]
    if len(given) != 1:
        raise ArgumentError(
            f"The rule has {len(given)} filters; it needs one, a 'sql-filter' or a 'correlation-filter'."
        )
    fields = RequestBody(given[0], description.mapping(given[0]))
    if given[0] == "sql-filter":
        expression = fields.text("expression")
        return _CONSTANT.get(expression) or SqlFilter(expression)
    conditions = {name: fields.text(name) for name in _CONDITIONS if fields.get(name) is not None}
    properties = tuple(_property(name, value) for name, value in fields.mapping("properties").items())
    if not conditions and not properties:
        raise ArgumentError("The correlation-filter has no condition; it needs at least one.")
    return CorrelationFilter(
        **{name.replace("-", "_"): text for name, text in conditions.items()}, properties=properties
    )


def _read_action(description: RequestBody) -> SqlAction | None:
    if description.get("sql-rule-action") is None:
        return None
    action = RequestBody("sql-rule-action", description.mapping("sql-rule-action"))
    return SqlAction(action.text("expression"))


def _property(name: object, value: object) -> tuple[str, Value]:
    """A value of a correlation, in a type that HTTP management can show too."""
    if not isinstance(name, str):
        raise ArgumentError(f"The name of a property is a {type(name).__name__}; it has to be a string.")
    if isinstance(value, bool):
        return str(name), value
    if isinstance(value, Timestamp):
        if not 0 < value <= LAST_TIME:
            raise ArgumentOutOfRange(f"The property '{name[:60]}' is a time that no calendar has: {value}.")
        return str(name), TypedText("dateTime", write_time(value))
    if isinstance(value, uuid.UUID):
        return str(name), TypedText("guid", str(value))
    if isinstance(value, str):
        return str(name), str(value)
    if isinstance(value, int):
        return str(name), int(value)
    if isinstance(value, float):
        return str(name), float(value)
    raise ArgumentError(
        f"The property '{name[:60]}' is a {type(value).__name__}; it has to be a string, a number, a boolean, a timestamp "
        "or a uuid."
    )


def _described(view: EntityView) -> Described:
    """A rule with numeric descriptors, which are the only ones that JavaScript compares, and an action in any case."""
    rule = view.description
    assert isinstance(rule, RuleDescription)
    action = (
        Described(ULong(EMPTY_ACTION), [])
        if rule.action is None
        else Described(ULong(SQL_ACTION), [rule.action.expression, COMPATIBILITY_LEVEL])
    )
    name = parent_and_name(view.path)[1]
    return Described(ULong(RULE_DESCRIPTION), [_filter(rule.filter), action, name, Timestamp(view.created)])


def _filter(rule_filter: RuleFilter) -> Described:
    match rule_filter:
        case TrueFilter():
            return Described(ULong(TRUE_FILTER), [])
        case FalseFilter():
            return Described(ULong(FALSE_FILTER), [])
        case SqlFilter():
            return Described(ULong(SQL_FILTER), [rule_filter.expression, COMPATIBILITY_LEVEL])
        case CorrelationFilter():
            fields: list[object] = [getattr(rule_filter, name.replace("-", "_")) for name in _CONDITIONS]
            fields.append({name: _value(value) for name, value in rule_filter.properties})
            return Described(ULong(CORRELATION_FILTER), fields)


def _value(value: Value) -> object:
    """The AMQP value of a correlation's condition. What AMQP has no type for is shown as it was written."""
    if isinstance(value, TypedText):
        try:
            if value.type == "dateTime":
                at = datetime.fromisoformat(value.text)
                at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
                return Timestamp(round(at.timestamp() * 1000))
            if value.type == "guid":
                return uuid.UUID(value.text)
        except ValueError:
            pass
        return value.text
    if isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31:
        return Int(value)
    return value
