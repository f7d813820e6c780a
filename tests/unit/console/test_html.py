"""Text is escaped by its type, wherever it stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from busbar.console.html import Markup, tag


def test_elements_and_attributes() -> None:
    assert tag("p", "a < b", class_="note").text == '<p class="note">a &lt; b</p>'
    assert tag("label", "x", for_="y", data_held=3).text == '<label for="y" data-held="3">x</label>'
    assert tag("input", checked=True, required=False, value=None).text == "<input checked>"
    assert tag("ul", [tag("li", "1"), tag("li", "2")], None).text == "<ul><li>1</li><li>2</li></ul>"
    assert tag("rect", x=0).text == '<rect x="0"></rect>'  # SVG knows no element without an end


@given(st.text())
def test_no_text_ends_what_it_stands_in(text: str) -> None:
    made = tag("p", text, title=text).text
    inner = made.removeprefix('<p title="').removesuffix("</p>")
    assert "<" not in inner and inner.count('"') == 1 and inner.count(">") == 1


def test_only_what_was_made_here_is_markup() -> None:
    assert tag("p", Markup("<b>x</b>")).text == "<p><b>x</b></p>"
    assert tag("p", "<b>x</b>").text == "<p>&lt;b&gt;x&lt;/b&gt;</p>"
