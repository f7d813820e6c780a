"""Compares the entities of a file with those of a namespace: what would be created, changed, deleted. Pure.

1. The file describes an entity as a whole: a property that it does not name has its default.
2. Rules of a subscription and authorization rules are compared only if the file names some.
3. Entities, rules and authorization rules that the file does not have stay, unless `prune` is set.
4. A property that is fixed at creation cannot be changed: such a plan cannot be carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from busbar.app.provisioning import in_order
from busbar.model.config_document import json_value, plain_filter
from busbar.model.entities import (
    CorrelationFilter,
    Description,
    EntityDescription,
    NamespaceDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    authorization_rules_of,
    kind_of,
)
from busbar.model.names import key_of, parent_and_name
from busbar.model.properties import properties_of

CREATE, CHANGE, DELETE, UNCHANGED = "create", "change", "delete", "unchanged"
Entities = Sequence[tuple[str, Description]]


@dataclass(frozen=True, slots=True)
class PropertyChange:
    property: str
    old: object
    new: object
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What happens to an entity, a rule of a subscription, or an authorization rule (`access`)."""

    action: str
    kind: str
    path: str
    description: Description | None = None
    changes: Sequence[PropertyChange] = ()
    access: str = ""
    """The name of the authorization rule of the entity at `path` ('': of the namespace)."""
    rights: Sequence[str] = ()


@dataclass(slots=True)
class NamespacePlan:
    steps: list[PlanStep] = field(default_factory=list)
    """In an order in which they can be carried out; those that delete come last."""

    @property
    def changing(self) -> list[PlanStep]:
        return [step for step in self.steps if step.action != UNCHANGED]

    @property
    def impossible(self) -> list[str]:
        """Why the plan cannot be carried out, if that is so (rule 4)."""
        return [
            f"'{step.path}': {change.property} is fixed at creation ({change.old} -> {change.new}); delete the entity first"
            for step in self.steps
            for change in step.changes
            if change.is_fixed
        ] + [
            f"'{step.path}' is there as a {step.kind}, and the file has another kind of entity of that name"
            for step in self.steps
            if step.action == CHANGE and not step.changes and not step.access
        ]


def plan(wanted: Entities, there: Entities, *, prune: bool) -> NamespacePlan:
    """What makes the namespace as the file describes it."""
    known = {key_of(path): (path, description) for path, description in there}
    found = NamespacePlan()
    for path, description in in_order(wanted):
        before = known.get(key_of(path))
        found.steps.append(_step(path, description, before[1] if before else None))
        found.steps += _access_steps(path, description, before[1] if before else None, prune)
    if prune:
        found.steps += _deletions(wanted, there)
    return found


def access_steps(
    path: str, wanted: Sequence[tuple[str, Sequence[str]]], there: Sequence[tuple[str, Sequence[str]]]
) -> list[PlanStep]:
    """The steps for authorization rules, given by names and rights."""
    known = {name: {*rights} for name, rights in there}
    steps = []
    for name, rights in wanted:
        complete = sorted(right.value for right in Right) if Right.MANAGE in rights else sorted(rights)
        old = known.get(name)
        changes = (
            [] if old is None or old == {*complete} else [PropertyChange("Rights", sorted(old), complete)]
        )
        action = CREATE if old is None else CHANGE if changes else UNCHANGED
        steps.append(
            PlanStep(action, "authorization rule", path, changes=changes, access=name, rights=complete)
        )
    return steps


def _step(path: str, wanted: Description, there: Description | None) -> PlanStep:
    kind = kind_of(wanted).value.lower()
    if there is None:
        return PlanStep(CREATE, kind, path, wanted)
    if type(there) is not type(wanted):
        return PlanStep(CHANGE, kind_of(there).value.lower(), path, wanted)
    changes = _changes(wanted, there)
    return PlanStep(CHANGE if changes else UNCHANGED, kind, path, wanted, changes)


def _changes(wanted: Description, there: Description) -> list[PropertyChange]:
    if isinstance(wanted, RuleDescription) and isinstance(there, RuleDescription):
        pairs = (
            ("Filter", _filter(there), _filter(wanted)),
            ("Action", there.action, wanted.action),
        )
        return [PropertyChange(name, old, new) for name, old, new in pairs if old != new]
    if isinstance(wanted, RuleDescription | NamespaceDescription) or isinstance(
        there, RuleDescription | NamespaceDescription
    ):
        return []
    wanted = _as_stored(wanted)
    found = []
    for row in properties_of(type(wanted)):
        old, new = json_value(row, there), json_value(row, wanted)
        if old != new:
            found.append(PropertyChange(row.element, old, new, row.fixed))
    return found


def _as_stored(wanted: EntityDescription) -> EntityDescription:
    """As the broker keeps it: an entity that forwards is never idle."""
    if isinstance(wanted, QueueDescription | SubscriptionDescription) and wanted.forward_to:
        return replace(wanted, auto_delete_on_idle=0)
    return wanted


def _filter(rule: RuleDescription) -> object:
    return rule.filter if isinstance(rule.filter, CorrelationFilter) else plain_filter(rule.filter)


def _access_steps(path: str, wanted: Description, there: Description | None, prune: bool) -> list[PlanStep]:
    asked = [(rule.name, [right.value for right in rule.rights]) for rule in authorization_rules_of(wanted)]
    if not asked:
        return []
    known = authorization_rules_of(there) if there is not None else ()
    steps = access_steps(path, asked, [(rule.name, [right.value for right in rule.rights]) for rule in known])
    if prune:
        names = {name for name, _ in asked}
        steps += [
            PlanStep(DELETE, "authorization rule", path, access=rule.name)
            for rule in known
            if rule.name not in names
        ]
    return steps


def _deletions(wanted: Entities, there: Entities) -> list[PlanStep]:
    """What the file does not have. What is below a deleted entity goes with it."""
    names = {key_of(path) for path, _ in wanted}
    with_rules = {
        key_of(parent_and_name(path)[0]) for path, one in wanted if isinstance(one, RuleDescription)
    }
    gone: set[str] = set()
    steps = []
    for path, description in sorted(there, key=lambda item: len(item[0])):
        parent = key_of(parent_and_name(path)[0])
        if key_of(path) in names:
            continue
        if parent in gone or (isinstance(description, RuleDescription) and parent not in with_rules):
            if parent in gone:
                gone.add(key_of(path))
            continue
        gone.add(key_of(path))
        steps.append(PlanStep(DELETE, kind_of(description).value.lower(), path, description))
    return steps
