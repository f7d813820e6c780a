"""Which authorization rules a namespace has after a start, by its configuration and by what operators did."""

from __future__ import annotations

from dataclasses import replace

from busbar.app.namespace_rules import managing_rule, merged
from busbar.model.entities import AuthorizationRule, NamespaceDescription, Right
from busbar.model.sas import SasRule

ALL = frozenset(Right)
ROOT = SasRule("Root", ("k1",), frozenset(("Manage", "Send", "Listen")))
LISTEN = SasRule("Listen", ("l1", "l2"), frozenset(("Listen",)))


def keys(description: NamespaceDescription) -> dict[str, tuple[str, str]]:
    return {rule.name: (rule.primary_key, rule.secondary_key) for rule in description.authorization_rules}


def with_rules(before: NamespaceDescription, *rules: AuthorizationRule) -> NamespaceDescription:
    return replace(before, authorization_rules=rules)


def test_the_first_start_takes_the_configuration() -> None:
    assert keys(merged(NamespaceDescription(), [ROOT, LISTEN])) == {
        "Root": ("k1", ""),
        "Listen": ("l1", "l2"),
    }


def test_a_renewed_key_stays_while_the_configuration_is_the_same() -> None:
    first = merged(NamespaceDescription(), [ROOT])
    renewed = with_rules(first, AuthorizationRule("Root", ALL, "new", "second"))
    assert merged(renewed, [ROOT]) == renewed


def test_a_new_key_of_the_configuration_is_in_force() -> None:
    first = merged(NamespaceDescription(), [ROOT])
    renewed = with_rules(first, AuthorizationRule("Root", ALL, "new", "second"))
    assert keys(merged(renewed, [replace(ROOT, keys=("k2",))])) == {"Root": ("k2", "")}


def test_a_deleted_rule_does_not_come_back_with_the_same_configuration() -> None:
    first = merged(NamespaceDescription(), [ROOT, LISTEN])
    deleted = with_rules(first, first.authorization_rules[0])
    assert keys(merged(deleted, [ROOT, LISTEN])) == {"Root": ("k1", "")}
    assert "Listen" in keys(merged(deleted, [ROOT, replace(LISTEN, keys=("other",))]))


def test_what_leaves_the_configuration_is_removed_and_other_rules_stay() -> None:
    first = merged(NamespaceDescription(), [ROOT, LISTEN])
    added = with_rules(first, *first.authorization_rules, AuthorizationRule("Own", ALL, "o", "p"))
    assert keys(merged(added, [ROOT])) == {"Root": ("k1", ""), "Own": ("o", "p")}


def test_commands_use_a_rule_that_manages() -> None:
    listen = AuthorizationRule("Listen", frozenset((Right.LISTEN,)), "l", "")
    one, two = AuthorizationRule("One", ALL, "1", ""), AuthorizationRule("Two", ALL, "2", "")
    assert managing_rule([listen, one, two], "Two") is two
    assert managing_rule([listen, one, two], "Listen") is one
    assert managing_rule([listen], "Listen") is None
