"""The settings of fragments as bytes, for a broker process that has their store.

The settings of a topic's fragments have, for each subscription, the fragment beside them and the rules by which it selects.
Those rules are sent as definitions, once for all fragments of a call. The other side recognises a set of rules that it has
got before by its bytes. So after a change of one subscription it does not compile the rules of all others again.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec

from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.cluster.codec import encoded_fields, row_of
from busbar.cluster.codec_table import PARTS, SETTINGS
from busbar.model.api import EntityView
from busbar.model.entities import RuleDescription
from busbar.model.settings import ForwardSettings, FragmentSettings, TapSettings
from busbar.model.topic_settings import RuleSet, TopicRules, TopicSettings


class _Topic(msgspec.Struct, array_like=True):
    index: int
    fragments: tuple[int, ...]
    subscribers: list[int]
    """By their place in the call."""


class _Subscriber(msgspec.Struct, array_like=True):
    dead_letters_errors: bool
    rules: list[bytes]


class _Row(msgspec.Struct, array_like=True):
    fragment: int
    settings: msgspec.Raw
    """The fields of FragmentSettings, in their order."""
    topic: _Topic | None


class _Call(msgspec.Struct, array_like=True):
    subscribers: list[bytes]
    settings: list[_Row]


_settings_row = row_of(SETTINGS)
_part_rows = {kind: row_of(PARTS[kind]) for kind in (TapSettings, ForwardSettings)}
_settings = msgspec.msgpack.Decoder(
    msgspec.defstruct("SettingsRow", encoded_fields(SETTINGS), array_like=True, forbid_unknown_fields=True)
)
_encoder = msgspec.msgpack.Encoder(enc_hook=lambda part: _part_rows[type(part)](part))
_calls = msgspec.msgpack.Decoder(_Call)
_subscribers = msgspec.msgpack.Decoder(_Subscriber)


def encode_settings(fragments: Mapping[int, FragmentSettings]) -> bytes:
    places: dict[RuleSet, int] = {}
    rows = [_row(fragment, settings, places) for fragment, settings in fragments.items()]
    return msgspec.msgpack.encode(_Call([_rules(one) for one in places], rows))


def _row(fragment: int, of: FragmentSettings, places: dict[RuleSet, int]) -> _Row:
    topic = None
    if of.topic is not None:
        beside = [places.setdefault(one, len(places)) for one in of.topic.rules.subscriptions]
        topic = _Topic(of.topic.index, of.topic.fragments, beside)
    return _Row(fragment, msgspec.Raw(_encoder.encode(_settings_row(of))), topic)


def _read_settings(encoded: msgspec.Raw) -> FragmentSettings:
    values = msgspec.structs.asdict(_settings.decode(encoded))
    values["taps"] = [TapSettings(*tap) for tap in values["taps"]]
    for name in ("forward", "forward_dead_letters"):
        if values[name] is not None:
            values[name] = ForwardSettings(*values[name])
    return FragmentSettings(**values)


def _rules(subscriber: RuleSet) -> bytes:
    rules = [encode_definition(EntityView(name, rule, ())) for name, rule in subscriber.rules]
    return msgspec.msgpack.encode(_Subscriber(subscriber.dead_letters_errors, rules))


class SettingsReader:
    """Decodes settings at the other side. Raises msgspec.DecodeError for what was not written here."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, RuleSet] = WeakValueDictionary()

    def read(self, encoded: bytes) -> dict[int, FragmentSettings]:
        call = _calls.decode(encoded)
        subscribers = [self._subscriber(rules) for rules in call.subscribers]
        shared: dict[tuple[int, ...], TopicRules] = {}
        found: dict[int, FragmentSettings] = {}
        for row in call.settings:
            found[row.fragment] = settings = _read_settings(row.settings)
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
