"""Answers: an ATOM entry for one entity, a feed for a page of them.

1. `id` is an absolute URL with the entity's path, from which the JavaScript SDK takes names. `title` is the name, which the
   other SDKs use.
2. If a feed has a second link, it leads to the next page and has `$skip` and `$top`. The Python SDK follows it only there.
"""

from __future__ import annotations

from busbar.gateway.http.atom_description import EntityAnswer, Site, write_description
from busbar.gateway.http.atom_rule import write_rule
from busbar.gateway.http.atom_values import write_time
from busbar.gateway.http.atom_xml import XmlWriter
from busbar.model.api import NamespaceProperties
from busbar.model.atom import ATOM, INSTANCE, SERVICE_BUS
from busbar.model.entities import RuleDescription, Tier
from busbar.model.names import parent_and_name

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"

_DESCRIPTION = {"xmlns": SERVICE_BUS, "xmlns:i": INSTANCE}


def entry_document(shown: EntityAnswer, author: str) -> bytes:
    xml = XmlWriter()
    _write_entry(xml, shown, author, {"xmlns": ATOM})
    return xml.document()


def feed_document(
    path: str, title: str, entries: list[EntityAnswer], site: Site, author: str, next_query: str
) -> bytes:
    """A page of entities; `next_query` ("$skip=..&$top=..&") names the next page, '' if this is the last."""
    xml = XmlWriter()
    with xml.inside("feed", {"xmlns": ATOM}):
        _write_feed_head(xml, path, title, site)
        if next_query:
            xml.element("link", attributes={"rel": "next", "href": site.url(path, next_query)})
        for shown in entries:
            _write_entry(xml, shown, author, None)
    return xml.document()


def discovery_document(lists: dict[str, str], site: Site) -> bytes:
    """The document of the namespace's root: titles, and the paths of their feeds."""
    xml = XmlWriter()
    with xml.inside("feed", {"xmlns": ATOM}):
        _write_feed_head(xml, "", "Publicly Listed Services", site)
        for title, path in lists.items():
            with xml.inside("entry"):
                xml.element("id", site.url(path))
                xml.element("title", title, {"type": "text"})
                xml.element("updated", write_time(site.now))
                xml.element("link", attributes={"rel": "alternate", "href": site.url(path)})
    return xml.document()


def namespace_document(namespace: NamespaceProperties, site: Site) -> bytes:
    xml = XmlWriter()
    path = "$namespaceinfo"
    with xml.inside("entry", {"xmlns": ATOM}):
        xml.element("id", site.url(path))
        xml.element("title", namespace.name, {"type": "text"})
        xml.element("updated", write_time(namespace.modified))
        with xml.inside("author"):
            xml.element("name", namespace.name)
        xml.element("link", attributes={"rel": "self", "href": site.url(path)})
        with xml.inside("content", {"type": "application/xml"}), xml.inside("NamespaceInfo", _DESCRIPTION):
            xml.element("CreatedTime", write_time(namespace.created))
            xml.element("MessagingSKU", namespace.tier.value)
            if namespace.tier is Tier.PREMIUM:
                xml.element("MessagingUnits", "1")
            xml.element("ModifiedTime", write_time(namespace.modified))
            xml.element("Name", namespace.name)
            xml.element("NamespaceType", "Messaging")
    return xml.document()


def _write_feed_head(xml: XmlWriter, path: str, title: str, site: Site) -> None:
    xml.element("title", title, {"type": "text"})
    xml.element("id", site.url(path))
    xml.element("updated", write_time(site.now))
    xml.element("link", attributes={"rel": "self", "href": site.url(path)})


def _write_entry(xml: XmlWriter, shown: EntityAnswer, author: str, attributes: dict[str, str] | None) -> None:
    view, url = shown.view, shown.site.url(shown.view.path)
    description = view.description
    with xml.inside("entry", attributes):
        xml.element("id", url)
        xml.element("title", parent_and_name(view.path)[1], {"type": "text"})
        xml.element("published", write_time(view.created))
        xml.element("updated", write_time(view.updated))
        with xml.inside("author"):
            xml.element("name", author)
        xml.element("link", attributes={"rel": "self", "href": url})
        with (
            xml.inside("content", {"type": "application/xml"}),
            xml.inside(type(description).__name__, _DESCRIPTION),
        ):
            if isinstance(description, RuleDescription):
                write_rule(xml, parent_and_name(view.path)[1], description, view.created)
            else:
                write_description(xml, shown)
