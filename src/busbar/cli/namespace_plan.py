"""Compares the entities of a file with those of a namespace: what would be created, changed, deleted. Pure.

1. The file describes an entity as a whole: a property that it does not name has its default.
2. Rules of a subscription, taps and authorization rules are compared only if the file names some.
3. Entities, rules, taps and authorization rules that the file does not have stay, unless `prune` is set. Authorization rules
   of the namespace stay in any case.
4. A property that is fixed at creation cannot be changed: such a plan cannot be carried out. A tap has no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from busbar.app.provisioning import in_order
from busbar.model.config_document import json_value, plain_filter, tap_document
from busbar.model.entities import (
    AuthorizationRule,
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
from busbar.model.taps import TapDescription

CREATE, CHANGE, DELETE, UNCHANGED = "create", "change", "delete", "unchanged"
Entities = Sequence[tuple[str, Description]]
Taps = Sequence[tuple[str, TapDescription]]
NOT_COMPARED = ("Name", "DeadLetterQueue", "FromEarliest", "Owner")
"""Of a tap: what identifies it, what has a meaning at its creation alone, and what its readers change."""


@dataclass(frozen=True, slots=True)
class PropertyChange:
    property: str
    old: object
    new: object
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class PlanStep:
    """What happens to an entity, a rule of a subscription, an authorization rule (`access`), or a tap."""

    action: str
    kind: str
    path: str
    description: Description | None = None
    changes: Sequence[PropertyChange] = ()
    access: str = ""
    """The name of the authorization rule of the entity at `path` ('': of the namespace)."""
    rights: Sequence[str] = ()
    keys: tuple[str, str] = field(default=("", ""), repr=False)
    tap: TapDescription | None = None


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
            f"'{step.path}': {change.property} is fixed at creation ({change.old} -> {change.new}); "
            f"delete the {'tap' if step.tap else 'entity'} first"
            for step in self.steps
            for change in step.changes
            if change.is_fixed
        ] + [
            f"'{step.path}' is there as a {step.kind}, and the file has another kind of entity of that name"
            for step in self.steps
            if step.action == CHANGE and not step.changes and not step.access
        ]


def plan(
    wanted: Entities, there: Entities, *, prune: bool, taps: Taps = (), taps_there: Taps = ()
) -> NamespacePlan:
    """What makes the namespace as the file describes it."""
    known = {key_of(path): (path, description) for path, description in there}
    found = NamespacePlan()
    for path, description in in_order(wanted):
        before = known.get(key_of(path))
        found.steps.append(_step(path, description, before[1] if before else None))
        found.steps += _access_steps(path, description, before[1] if before else None, prune)
    found.steps += _tap_steps(taps, taps_there, prune)
    if prune:
        found.steps += _deletions(wanted, there)
    return found


def access_steps(
    path: str, wanted: Sequence[AuthorizationRule], there: Sequence[AuthorizationRule]
) -> list[PlanStep]:
    """The steps for authorization rules. Keys are compared if the file has them; the plan does not show them."""
    known = {rule.name: rule for rule in there}
    steps = []
    for rule in wanted:
        rights = sorted(right.value for right in (Right if Right.MANAGE in rule.rights else rule.rights))
        old = known.get(rule.name)
        changes = []
        if old is not None:
            before = sorted(right.value for right in old.rights)
            if before != rights:
                changes.append(PropertyChange("Rights", before, rights))
            if _has_other_keys(rule, old):
                changes.append(PropertyChange("Keys", "others", "those of the file"))
        action = CREATE if old is None else CHANGE if changes else UNCHANGED
        keys = rule.primary_key, rule.secondary_key
        steps.append(
            PlanStep(
                action,
                "authorization rule",
                path,
                changes=changes,
                access=rule.name,
                rights=rights,
                keys=keys,
            )
        )
    return steps


def _has_other_keys(wanted: AuthorizationRule, there: AuthorizationRule) -> bool:
    pairs = (wanted.primary_key, there.primary_key), (wanted.secondary_key, there.secondary_key)
    return any(new and new != old for new, old in pairs)


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
    asked = authorization_rules_of(wanted)
    if not asked:
        return []
    known = authorization_rules_of(there) if there is not None else ()
    steps = access_steps(path, asked, known)
    if prune:
        names = {rule.name for rule in asked}
        steps += [
            PlanStep(DELETE, "authorization rule", path, access=rule.name)
            for rule in known
            if rule.name not in names
        ]
    return steps


def _tap_steps(wanted: Taps, there: Taps, prune: bool) -> list[PlanStep]:
    known = {_tap_key(path, tap): tap for path, tap in there}
    steps = []
    for path, tap in wanted:
        old = known.get(_tap_key(path, tap))
        before, after = tap_document(old or tap), tap_document(tap)
        changes = [
            PropertyChange(
                f"{name} of the tap '{tap.name}'", before.get(name), after.get(name), is_fixed=True
            )
            for name in {**before, **after}
            if name not in NOT_COMPARED and before.get(name) != after.get(name)
        ]
        action = CREATE if old is None else CHANGE if changes else UNCHANGED
        steps.append(PlanStep(action, "tap", path, changes=changes, tap=tap))
    if prune:
        named = {key_of(path) for path, _ in wanted}
        keys = {_tap_key(path, tap) for path, tap in wanted}
        steps += [
            PlanStep(DELETE, "tap", path, tap=tap)
            for path, tap in there
            if key_of(path) in named and _tap_key(path, tap) not in keys
        ]
    return steps


def _tap_key(path: str, tap: TapDescription) -> tuple[str, str, bool]:
    return key_of(path), key_of(tap.name), tap.dead_letter


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
