"""The catalogue's calls as values that cross to another process: a request, and a list of encoded answers.

Descriptions travel as definitions, in the form that the store keeps them in.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from busbar.catalogue.definition import decode_definition, encode_definition
from busbar.model.api import (
    BrokerApi,
    EntityView,
    FragmentView,
    NamedRule,
    NamespaceProperties,
    RuntimeProperties,
    StoreView,
)
from busbar.model.entities import Description, EntityKind, RuleDescription
from busbar.model.names import parent_and_name, rule_path
from busbar.model.taps import TapChange, TapDescription


class GetEntity(msgspec.Struct, array_like=True, tag="entity"):
    path: str


class Create(msgspec.Struct, array_like=True, tag="create"):
    definition: bytes
    default_rule: bytes | None


class Update(msgspec.Struct, array_like=True, tag="update"):
    definition: bytes


class Delete(msgspec.Struct, array_like=True, tag="delete"):
    path: str


class ListEntities(msgspec.Struct, array_like=True, tag="list"):
    kind: EntityKind
    parent: str
    skip: int
    top: int


class CreateTap(msgspec.Struct, array_like=True, tag="create tap"):
    path: str
    tap: TapDescription


class ChangeTap(msgspec.Struct, array_like=True, tag="change tap"):
    path: str
    name: str
    dead_letter: bool
    change: TapChange


class GetRuntime(msgspec.Struct, array_like=True, tag="runtime"):
    path: str


class GetNamespace(msgspec.Struct, array_like=True, tag="namespace"):
    pass


class ListFragments(msgspec.Struct, array_like=True, tag="fragments"):
    path: str


class ListStores(msgspec.Struct, array_like=True, tag="stores"):
    pass


class ChangeStore(msgspec.Struct, array_like=True, tag="store"):
    name: str
    to: str


StoreRequest = ListFragments | ListStores | ChangeStore
TapRequest = CreateTap | ChangeTap
CatalogueChange = Create | Update | Delete | TapRequest
Request = CatalogueChange | GetEntity | ListEntities | GetRuntime | GetNamespace | StoreRequest

_runtimes = msgspec.json.Decoder(RuntimeProperties)
_namespaces = msgspec.json.Decoder(NamespaceProperties)
_fragments = msgspec.json.Decoder(FragmentView)
_stores = msgspec.json.Decoder(StoreView)


async def perform(port: BrokerApi, request: Request) -> list[bytes]:
    """Do what was asked. Raises what the port raises, or msgspec.DecodeError for a definition that is none."""
    if isinstance(request, StoreRequest):
        return await _perform_on_stores(port, request)
    if isinstance(request, CreateTap):
        return _views([await port.create_tap(request.path, request.tap)])
    if isinstance(request, ChangeTap):
        changed_tap = port.change_tap(request.path, request.name, request.dead_letter, request.change)
        return _views([await changed_tap])
    if isinstance(request, GetEntity):
        return _views([await port.entity(request.path)])
    if isinstance(request, Create):
        new = decode_definition(request.definition)
        return _views([await port.create(new.path, new.description, _named_rule(request.default_rule))])
    if isinstance(request, Update):
        changed = decode_definition(request.definition)
        return _views([await port.update(changed.path, changed.description)])
    if isinstance(request, Delete):
        await port.delete(request.path)
        return []
    if isinstance(request, ListEntities):
        return _views(await port.list(request.kind, request.parent, request.skip, request.top))
    if isinstance(request, GetRuntime):
        return [msgspec.json.encode(await port.runtime(request.path))]
    return [msgspec.json.encode(await port.namespace())]


async def _perform_on_stores(port: BrokerApi, request: StoreRequest) -> list[bytes]:
    if isinstance(request, ListFragments):
        return [msgspec.json.encode(view) for view in await port.fragments(request.path)]
    if isinstance(request, ListStores):
        return [msgspec.json.encode(view) for view in await port.stores()]
    return [msgspec.json.encode(await port.change_store(request.name, request.to))]


def create(path: str, description: Description, default_rule: NamedRule | None) -> Create:
    rule = None if default_rule is None else _definition(rule_path(path, default_rule[0]), default_rule[1])
    return Create(_definition(path, description), rule)


def update(path: str, description: Description) -> Update:
    return Update(_definition(path, description))


def views(answers: list[bytes]) -> list[EntityView]:
    return [decode_definition(answer) for answer in answers]


def runtime(answers: list[bytes]) -> RuntimeProperties:
    return _runtimes.decode(answers[0])


def namespace(answers: list[bytes]) -> NamespaceProperties:
    return _namespaces.decode(answers[0])


def fragments(answers: list[bytes]) -> list[FragmentView]:
    return [_fragments.decode(answer) for answer in answers]


def stores(answers: list[bytes]) -> list[StoreView]:
    return [_stores.decode(answer) for answer in answers]


def _views(found: Sequence[EntityView]) -> list[bytes]:
    return [encode_definition(view) for view in found]


def _definition(path: str, description: Description) -> bytes:
    return encode_definition(EntityView(path, description, ()))


def _named_rule(encoded: bytes | None) -> NamedRule | None:
    if encoded is None:
        return None
    view = decode_definition(encoded)
    if not isinstance(view.description, RuleDescription):
        raise msgspec.DecodeError("the definition of a default rule is not that of a rule")
    return parent_and_name(view.path)[1], view.description
