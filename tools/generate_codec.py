"""Writes src/busbar/cluster/codec_table.py: the fields of commands, effects and settings that are sent between processes.

The fields of a class are the parameters of its constructor. They are read from the source, because compiled classes cannot
be inspected. The attribute of a parameter is the one that it is assigned to; if that has an annotation of its own, the
annotation counts. Tags are positions in the file: processes of one namespace always have the same version.

    python tools/generate_codec.py           write the table
    python tools/generate_codec.py --check   check whether it is up to date (exit 1: it is not)
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "src" / "busbar" / "model"
TABLE = ROOT / "src" / "busbar" / "cluster" / "codec_table.py"
MODULES = ("message", "commands", "hold_commands", "effects", "settings")

LOCAL = {"StoreCopies", "KeepHolds", "FragmentSettings.topic", "Happened", "MessageStep"}
"""Classes, or fields of one, that are not sent. Copies stay in one process and one commit. Holders are named by their own
process. The rules of a topic are sent as definitions. Histories are recorded where their fragments are."""
SETTINGS = "FragmentSettings"

HEAD = '''"""The fields of commands, effects and settings, in the order of their constructors, as they cross channels.

Made by tools/generate_codec.py from the sources of busbar.model. Do not edit it; run the tool.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

{imports}
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Fields = list[tuple[str, Any]]

# fmt: off
'''


@dataclass(frozen=True, slots=True)
class Parameter:
    attribute: str
    type: ast.expr


@dataclass(frozen=True, slots=True)
class ModelClass:
    name: str
    module: str
    base: str
    parameters: tuple[Parameter, ...]


class ModelSource:
    """The classes and type aliases of the model, as its sources declare them."""

    def __init__(self) -> None:
        self.classes: dict[str, ModelClass] = {}
        self.aliases: dict[str, ast.expr] = {}
        for module in MODULES:
            for node in ast.parse((MODEL / f"{module}.py").read_text()).body:
                if isinstance(node, ast.ClassDef) and (init := _constructor(node)) is not None:
                    base = node.bases[0].id if node.bases and isinstance(node.bases[0], ast.Name) else ""
                    self.classes[node.name] = ModelClass(
                        node.name, module, base, tuple(_parameters(node.name, init))
                    )
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.aliases[node.targets[0].id] = node.value

    def family(self, base: str) -> list[ModelClass]:
        """The concrete classes of commands or of effects, in their order."""
        return [one for one in self.classes.values() if one.base == base and one.name not in LOCAL]

    def parts(self, families: list[ModelClass]) -> list[ModelClass]:
        """The classes within these classes, alone or in lists, that have no tag of their own."""
        names = {name for one in families for each in one.parameters for name in _names(each.type)}
        return [one for one in self.classes.values() if one.name in names]

    def type_text(self, node: ast.expr) -> str:
        """A type in the notation of the table."""
        match node:
            case ast.Name(id="i64" | "int"):
                return "Int"
            case ast.Name(id="bool" | "str" | "bytes" as name):
                return name
            case ast.Name(id=name) if name in self.aliases:
                return self.type_text(self.aliases[name])
            case ast.Name(id=name) if name in self.classes:
                return name
            case ast.Constant(value=None):
                return "None"
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return f"{self.type_text(left)} | {self.type_text(right)}"
            case ast.Subscript(
                value=ast.Name(id="list" | "dict" | "tuple" as kind), slice=ast.Tuple(elts=inner)
            ):
                return f"{kind}[{', '.join(map(self.type_text, inner))}]"
            case ast.Subscript(value=ast.Name(id="list" as kind), slice=inner):
                return f"{kind}[{self.type_text(inner)}]"
        raise SystemExit(
            f"the type {ast.unparse(node)} cannot cross between processes; see tools/generate_codec.py"
        )

    def fields_text(self, one: ModelClass) -> str:
        fields = [f'("{each.attribute}", {self.type_text(each.type)}),' for each in one.parameters]
        lines: list[str] = []
        for field in fields:
            if lines and len(lines[-1]) + len(field) < 100:
                lines[-1] += f" {field}"
            else:
                lines.append(field)
        return "[\n" + textwrap.indent("\n".join(lines), " " * 8) + "\n    ]"


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next(
        (one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None
    )


def _parameters(owner: str, init: ast.FunctionDef) -> Iterator[Parameter]:
    attributes: dict[str, str] = {}
    annotations: dict[str, ast.expr] = {}
    for statement in init.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=attribute)], value=ast.Name(id=name)):
                attributes[name] = attribute
            case ast.AnnAssign(target=ast.Attribute(attr=attribute), annotation=annotation):
                annotations[attribute] = annotation
    for argument in init.args.args[1:]:
        attribute = attributes.get(argument.arg, argument.arg)
        assert argument.annotation is not None, f"{owner}.{argument.arg} has no type"
        if f"{owner}.{attribute}" not in LOCAL:
            yield Parameter(attribute, annotations.get(attribute, argument.annotation))


def _names(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def generate() -> str:
    """The text of the table."""
    source = ModelSource()
    commands, effects = source.family("Command"), source.family("Effect")
    settings = source.classes[SETTINGS]
    parts = source.parts([*commands, *effects, settings])
    text = HEAD.format(imports=_imports([*commands, *effects, *parts]))
    text += "PARTS: dict[type[Any], Fields] = {\n"
    text += "".join(f"    {one.name}: {source.fields_text(one)},\n" for one in parts)
    text += '}\n"""What commands, effects and settings are made of, alone or in lists, but for other commands."""\n'
    for name, family in (("COMMANDS", commands), ("EFFECTS", effects)):
        text += f"\n{name}: dict[type[Any], tuple[int, Fields]] = {{\n"
        for tag, one in enumerate(family, 1):
            text += f"    {one.name}: ({tag}, {source.fields_text(one)}),\n"
        text += "}\n"
    text += f"\nSETTINGS: Fields = {source.fields_text(settings).replace(' ' * 8, ' ' * 4)[:-5]}]\n"
    return text


def _imports(classes: list[ModelClass]) -> str:
    text = ""
    for module in sorted({one.module for one in classes}):
        names = sorted(one.name for one in classes if one.module == module)
        line = f"from busbar.model.{module} import {', '.join(names)}\n"
        if len(line) > 110:
            line = (
                f"from busbar.model.{module} import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"
            )
        text += line
    return text


def main() -> int:
    text = generate()
    if "--check" in sys.argv[1:]:
        return 0 if TABLE.exists() and TABLE.read_text() == text else 1
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
