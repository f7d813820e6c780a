"""Reads the prose of documents, docstrings and comments: its blocks, and their sentences."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_FENCE = re.compile(r"^```.*?^```[^\n]*$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^([-*]|\d+\.) ")
_END = re.compile(r"(?<=[.?!])[)\"*]*\s+(?=[(\"A-Z0-9*]|X )")
_MARKUP = (
    (re.compile(r"`[^`]*`"), "X"),  # code counts as one word
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\*\*|\*"), ""),
)


def document_blocks(text: str) -> Iterator[str]:
    """The paragraphs, list items, table cells and headings of a Markdown page, without its code."""
    block: list[str] = []
    in_list = in_code = False
    after_blank = True
    for line in _FENCE.sub("", text).splitlines():
        stripped = line.strip()
        in_code = (
            bool(stripped)
            and (after_blank or in_code)
            and len(line) - len(line.lstrip()) >= (6 if in_list else 4)
        )
        starts_block = not stripped or in_code or stripped[0] in "|#" or _ITEM.match(stripped)
        if starts_block and block:
            yield " ".join(block)
            block = []
        if stripped and not in_code:
            if stripped[0] == "|":
                yield from _cells(stripped)
            elif _ITEM.match(stripped):
                in_list = True
                block.append(_ITEM.sub("", stripped, count=1))
            else:
                in_list = in_list and not (after_blank and line[0] != " ")
                block.append(stripped.lstrip("# "))
        after_blank = not stripped
    if block:
        yield " ".join(block)


def _cells(row: str) -> Iterator[str]:
    if not re.fullmatch(r"[|\-: ]+", row):
        yield from (cell.strip() for cell in re.split(r"(?<!\\)\|", row) if cell.strip())


def docstring_blocks(text: str) -> Iterator[str]:
    """The paragraphs and list items of a docstring, without tables and examples, which have wide gaps or are indented."""
    for paragraph in re.split(r"\n[ \t]*\n", text):
        item: list[str] = []
        for line in paragraph.splitlines():
            if re.search(r"\S {2,}\S", line) or (re.match(r" {4,}\S", line) and not item):
                continue
            if _ITEM.match(line.strip()) and item:
                yield " ".join(item)
                item = []
            item.append(_ITEM.sub("", line.strip(), count=1))
        if item:
            yield " ".join(item)


def sentences(block: str) -> list[str]:
    for pattern, replacement in _MARKUP:
        block = pattern.sub(replacement, block)
    return [sentence.strip() for sentence in _END.split(block) if sentence.strip()]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of the syntax tree of a source."""
    return list(ast.walk(ast.parse(path.read_text())))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Each docstring of a source with its line, those of attributes included."""
    for node in nodes(path):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Each comment of a source with its line, without those for tools."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# ?(noqa|type:|fmt:|pragma|!)", token.string):
            yield token.start[0], token.string.lstrip("# ")
