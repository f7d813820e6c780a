"""Carries out the steps of a plan, over the management API; those for taps over AMQP.

A new subscription is created with the first of its rules in the file. So it never has the default rule, which selects every
message, unless the file names it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree.ElementTree import Element

from busbar.cli.entity_kinds import KINDS, RUNTIME, EntityCommandKind
from busbar.cli.failure import CommandFailure, ExitCode
from busbar.cli.management_client import ManagementClient
from busbar.cli.namespace_plan import CHANGE, CREATE, DELETE, PlanStep
from busbar.client.administration_rules import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionFilter,
    TrueRuleFilter,
    write_rule,
)
from busbar.client.administration_xml import new_description, remove, set_text
from busbar.model.config_document import json_value
from busbar.model.entities import (
    CorrelationFilter,
    EntityDescription,
    FalseFilter,
    NamespaceDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TrueFilter,
)
from busbar.model.names import key_of, parent_and_name
from busbar.model.properties import CORRELATION, properties_of
from busbar.model.taps import TapDescription

if TYPE_CHECKING:
    from busbar.cli.endpoint import ConnectionOptions


class StepRunner:
    def __init__(self, client: ManagementClient, where: ConnectionOptions, steps: Sequence[PlanStep]) -> None:
        self._client = client
        self._where = where
        self._first_rules: dict[str, PlanStep] = {}
        for step in steps:
            if isinstance(step.description, RuleDescription) and step.action == CREATE:
                self._first_rules.setdefault(key_of(parent_and_name(step.path)[0]), step)
        self._done: set[int] = set()
        """Steps that were carried out with another one."""

    def run(self, step: PlanStep) -> None:
        """Carry out one step. Raises CommandFailure."""
        what = f"{step.kind} '{step.path}'"
        if id(step) in self._done:
            return
        try:
            self._carry_out(step, what)
        except ValueError as error:
            raise CommandFailure(f"{what} cannot be sent: {error}.", ExitCode.USAGE) from None

    def _carry_out(self, step: PlanStep, what: str) -> None:
        if step.access:
            self._access(step)
        elif step.tap is not None:
            self._tap(step.action, step.path, step.tap)
        elif step.action == DELETE:
            self._client.delete(step.path, what)
        elif isinstance(step.description, RuleDescription):
            rule = _rule(parent_and_name(step.path)[1], step.description)
            put = self._client.create_rule if step.action == CREATE else self._client.update_rule
            put(step.path, rule, what)
        elif step.description is not None and not isinstance(step.description, NamespaceDescription):
            kind = KINDS[type(step.description).__name__]
            if step.action == CREATE:
                self._client.create(step.path, self._new(step, kind, step.description), what)
            else:
                self._client.update(step.path, self._changed(step, kind, what), what)

    def _new(self, step: PlanStep, kind: EntityCommandKind, description: EntityDescription) -> Element:
        element = new_description(kind.description)
        if isinstance(description, SubscriptionDescription):
            first = self._first_rules.get(key_of(step.path))
            if first is not None and isinstance(first.description, RuleDescription):
                rule = _rule(parent_and_name(first.path)[1], first.description)
                element.append(write_rule(rule, "DefaultRuleDescription"))
                self._done.add(id(first))
        for row in properties_of(type(description)):
            value = json_value(row, description)
            if value is not None and row.element in kind.elements:
                set_text(element, row.element, _text(value), kind.elements)
        return element

    def _changed(self, step: PlanStep, kind: EntityCommandKind, what: str) -> Element:
        element = self._client.get(step.path, what).description
        for name in RUNTIME:
            remove(element, name)
        for change in step.changes:
            text = "" if change.new is None else _text(change.new)
            set_text(element, change.property, text, kind.elements)
        return element

    def _access(self, step: PlanStep) -> None:
        method = {CREATE: "POST", CHANGE: "PUT", DELETE: "DELETE"}[step.action]
        path = "$busbar/authorization-rules" + (f"/{step.path}" if step.path else "")
        given: dict[str, object] = {"rights": [*step.rights]}
        given |= {
            name: key for name, key in zip(("primaryKey", "secondaryKey"), step.keys, strict=True) if key
        }
        body = None if step.action == DELETE else json.dumps(given).encode()
        query = f"&rule={quote(step.access, safe='')}"
        self._client.expect(method, path, f"rule '{step.access}' of '{step.path}'", query=query, body=body)

    def _tap(self, action: str, path: str, tap: TapDescription) -> None:
        from busbar.cli.messaging import messaging

        with messaging(self._where) as factory:
            taps = factory.taps(path, sub_queue="deadletter" if tap.dead_letter else "")
            if action == DELETE:
                taps.delete(tap.name)
                return
            taps.create(
                tap.name,
                events=tap.events,
                consumes=tap.consumes,
                from_earliest=tap.from_earliest,
                owner=tap.owner,
                max_age=tap.max_age,
                max_size=tap.max_size,
                lease=tap.lease,
            )


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _rule(name: str, rule: RuleDescription) -> RuleProperties:
    action = rule.action
    acts = None if action is None else SqlRuleAction(action.expression, dict(action.parameters))
    found: SubscriptionFilter
    match rule.filter:
        case TrueFilter():
            found = TrueRuleFilter()
        case FalseFilter():
            found = FalseRuleFilter()
        case SqlFilter():
            found = SqlRuleFilter(rule.filter.expression, dict(rule.filter.parameters))
        case CorrelationFilter():
            system = {field: getattr(rule.filter, field) for field in CORRELATION.values()}
            found = CorrelationRuleFilter(**system, properties=dict(rule.filter.properties))
    return RuleProperties(name, found, acts)
