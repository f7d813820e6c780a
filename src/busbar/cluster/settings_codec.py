"""The settings of fragments as bytes, for a broker process that has their store.

A topic's fragments say for each subscription which fragment is beside them and by which rules it selects. Those rules are
sent as definitions, once for all fragments of a call. The other side knows a set of rules that it has got before by its
bytes, so that a change of one subscription does not make it compile the rules of all others again.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec

from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.model.api import EntityView
from busbar.model.entities import RuleDescription
from busbar.model.settings import FragmentSettings, TapSettings
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings


class _Tap(msgspec.Struct, array_like=True):
    id: int
    name: str
    sub: int
    events: bool
    consumes: bool
    start: int
    owner: str
    max_age_ms: int
    max_bytes: int
    lease_ms: int


class _Topic(msgspec.Struct, array_like=True):
    index: int
    fragments: tuple[int, ...]
    subscribers: list[int]
    """By their place in the call."""


class _Settings(msgspec.Struct, array_like=True):
    fragment: int
    lock_ms: int
    max_deliveries: int
    ttl_ms: int
    dead_letter_on_expiration: bool
    quota_bytes: int
    can_send: bool
    can_receive: bool
    duplicate_window_ms: int
    requires_session: bool
    only_selected: bool
    taps: list[_Tap]
    topic: _Topic | None


class _Subscriber(msgspec.Struct, array_like=True):
    dead_letters_errors: bool
    rules: list[bytes]


class _Call(msgspec.Struct, array_like=True):
    subscribers: list[bytes]
    settings: list[_Settings]


_calls = msgspec.msgpack.Decoder(_Call)
_subscribers = msgspec.msgpack.Decoder(_Subscriber)


def encode_settings(fragments: Mapping[int, FragmentSettings]) -> bytes:
    places: dict[RuleSet, int] = {}
    rows = [_row(fragment, settings, places) for fragment, settings in fragments.items()]
    return msgspec.msgpack.encode(_Call([_rules(one) for one in places], rows))


def _row(fragment: int, of: FragmentSettings, places: dict[RuleSet, int]) -> _Settings:
    topic = None
    if of.topic is not None:
        beside = [places.setdefault(one, len(places)) for one in of.topic.rules.subscriptions]
        topic = _Topic(of.topic.index, of.topic.fragments, beside)
    return _Settings(
        fragment,
        of.lock_ms,
        of.max_deliveries,
        of.ttl_ms,
        of.dead_letter_on_expiration,
        of.quota_bytes,
        of.can_send,
        of.can_receive,
        of.duplicate_window_ms,
        of.requires_session,
        of.only_selected,
        [_tap(tap) for tap in of.taps],
        topic,
    )


def _tap(of: TapSettings) -> _Tap:
    return _Tap(
        of.id,
        of.name,
        of.sub,
        of.events,
        of.consumes,
        of.start,
        of.owner,
        of.max_age_ms,
        of.max_bytes,
        of.lease_ms,
    )


def _rules(subscriber: RuleSet) -> bytes:
    rules = [encode_definition(EntityView(name, rule, ())) for name, rule in subscriber.rules]
    return msgspec.msgpack.encode(_Subscriber(subscriber.dead_letters_errors, rules))


class SettingsReader:
    """The other side. Raises msgspec.DecodeError for what was not written here."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, RuleSet] = WeakValueDictionary()

    def read(self, encoded: bytes) -> dict[int, FragmentSettings]:
        call = _calls.decode(encoded)
        subscribers = [self._subscriber(rules) for rules in call.subscribers]
        shared: dict[tuple[int, ...], TopicRules] = {}
        found: dict[int, FragmentSettings] = {}
        for row in call.settings:
            found[row.fragment] = settings = FragmentSettings(
                row.lock_ms,
                row.max_deliveries,
                row.ttl_ms,
                row.dead_letter_on_expiration,
                row.quota_bytes,
                row.can_send,
                row.can_receive,
                row.duplicate_window_ms,
                row.requires_session,
                [TapSettings(*msgspec.structs.astuple(tap)) for tap in row.taps],
                None,
                row.only_selected,
            )
            if row.topic is not None:
                places = tuple(row.topic.subscribers)
                rules = shared.get(places)
                if rules is None:
                    rules = shared[places] = TopicRules(tuple([subscribers[place] for place in places]))
                settings.topic = TopicSettings(row.topic.index, row.topic.fragments, rules)
        return found

    def _subscriber(self, encoded: bytes) -> RuleSet:
        known = self._known.get(encoded)
        if known is None:
            read = _subscribers.decode(encoded)
            known = self._known[encoded] = RuleSet(
                tuple([_rule(rule) for rule in read.rules]), read.dead_letters_errors
            )
        return known


def _rule(encoded: bytes) -> tuple[str, RuleDescription]:
    view = decode_definition(encoded)
    if not isinstance(view.description, RuleDescription):
        raise msgspec.DecodeError(f"'{view.path}' is no rule")
    return view.path, view.description
