"""Rules for marks and for tests that cannot run, as far as the text of the tests shows (CONTRIBUTING.md).

1. A requirement mark stands on a test that reaches a running Busbar: it is in a suite that has one, and the test, its
   fixtures, or what they call, names one of SERVERS.
2. A test that does not apply is skipped, so that it is counted as such: it does not return under a condition.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
HARNESS = ROOT / "harness"
SUITES_WITH_A_SERVER = {"interop", "console", "spark", "durability", "robustness", "set_up"}
SERVERS = {
    "Busbar": HARNESS / "serving.py",
    "serving": HARNESS / "serving.py",
    "Installed": HARNESS / "installed.py",
    "made_and_served": HARNESS / "installed.py",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass
class Module:
    """What a file of tests defines, and which names it takes from other files of tests and the harness."""

    path: Path
    tree: ast.Module
    definitions: dict[str, Definition] = field(default_factory=dict)
    imported: dict[str, Path] = field(default_factory=dict)

    @property
    def tests(self) -> list[Function]:
        return [
            node
            for name, node in self.definitions.items()
            if name.startswith("test_") and isinstance(node, Function)
        ]


@cache
def read(path: Path) -> Module:
    return parsed(path, path.read_text())


def parsed(path: Path, text: str) -> Module:
    module = Module(path, ast.parse(text))
    for node in module.tree.body:
        if isinstance(node, Definition):
            module.definitions[node.name] = node
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("tests.", "harness.")):
            source = ROOT / (node.module or "").replace(".", "/")
            for alias in node.names:
                inner = source / f"{alias.name}.py"  # a module of a package
                module.imported[alias.asname or alias.name] = (
                    inner if inner.exists() else source.with_suffix(".py")
                )
    for node in module.tree.body:
        if isinstance(node, ast.Assign):
            module.imported.update(borrowed(module, node))
    return module


def borrowed(module: Module, node: ast.Assign) -> Iterator[tuple[str, Path]]:
    """Names that a module takes over from others: `names, factory = fixtures.names, fixtures.factory`."""
    target, value = node.targets[0], node.value
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    for name, each in zip(targets, values, strict=False):
        if isinstance(name, ast.Name) and isinstance(each, ast.Attribute):
            source = each.value.id if isinstance(each.value, ast.Name) else ""
            if source in module.imported:
                yield name.id, module.imported[source]


def shared_fixtures(path: Path) -> Iterator[Module]:
    """Where pytest looks for a fixture that a file does not define: the nearest conftest first, the plugins last."""
    for directory in path.parents:
        if (directory / "conftest.py").exists():
            yield read(directory / "conftest.py")
        if directory == TESTS:
            break
    yield read(TESTS / "plugins" / "servers.py")


@cache
def names_in(node: Definition) -> tuple[frozenset[str], frozenset[str]]:
    """What a definition names, and its parameters, which may be fixtures."""
    inside = [*ast.walk(node)]
    names = {each.id for each in inside if isinstance(each, ast.Name)}
    names |= {each.attr for each in inside if isinstance(each, ast.Attribute)}
    return frozenset(names), frozenset(each.arg for each in inside if isinstance(each, ast.arg))


def reaches_a_server(module: Module, node: Definition, seen: set[tuple[Path, str]] | None = None) -> bool:
    seen = set() if seen is None else seen
    if (module.path, node.name) in seen:
        return False
    seen.add((module.path, node.name))
    names, fixtures = names_in(node)
    for name in names | fixtures:
        if name in SERVERS and module.imported.get(name) == SERVERS[name]:
            return True
        places = [module]
        if name in module.imported and module.imported[name].exists():
            places.append(read(module.imported[name]))
        if name in fixtures:
            places += shared_fixtures(module.path)
        defined = (
            (place, found)
            for place in places
            if (found := place.definitions.get(name)) is not None and found is not node
        )
        nearest = next(defined, None)  # it hides the others
        if nearest is not None and reaches_a_server(*nearest, seen):
            return True
    return False


def is_mark(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "req"
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "mark"
    )


def marked_tests(module: Module) -> list[Function]:
    """Those that carry a mark, by a decorator (also in a parameter) or by `pytestmark`."""
    everywhere = any(
        is_mark(each) for node in module.tree.body if isinstance(node, ast.Assign) for each in ast.walk(node)
    )
    return [
        test
        for test in module.tests
        if everywhere
        or any(is_mark(each) for decorator in test.decorator_list for each in ast.walk(decorator))
    ]


def misplaced_marks(module: Module) -> list[str]:
    suite = module.path.relative_to(TESTS).parts[0]
    return [
        f"{module.path.relative_to(ROOT)}::{test.name}"
        for test in marked_tests(module)
        if suite not in SUITES_WITH_A_SERVER or not reaches_a_server(module, test)
    ]


def returns(node: ast.AST, conditional: bool = False) -> Iterator[ast.Return]:
    """Those that a condition leads to; functions inside are their own matter."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return) and conditional:
            yield child
        elif not isinstance(child, Definition | ast.Lambda):
            yield from returns(child, isinstance(child, ast.If))


def silent_returns(module: Module) -> list[str]:
    return [
        f"{module.path.relative_to(ROOT)}:{found.lineno} {test.name}"
        for test in module.tests
        for found in returns(test)
    ]


def modules() -> list[Module]:
    return [read(path) for path in sorted(TESTS.rglob("test_*.py")) if "node_modules" not in path.parts]


def test_marks_stand_on_tests_that_reach_a_running_busbar() -> None:
    assert sum(len(marked_tests(module)) for module in modules()) > 200
    assert [name for module in modules() for name in misplaced_marks(module)] == []


def test_no_test_returns_where_it_should_be_skipped() -> None:
    assert [name for module in modules() for name in silent_returns(module)] == []


IMPORTS = "import pytest\nfrom harness.serving import Busbar, serving\n"
REACHING = {
    "by a fixture of the suite": (
        "interop",
        '@pytest.mark.req("U1")\nasync def test_it(partitioned_azure, either): pass\n',
    ),
    "by a fixture of its own": (
        "spark",
        "@pytest.fixture\ndef place():\n    with serving({}) as it: yield it\n"
        '@pytest.mark.req("U1")\ndef test_it(place): pass\n',
    ),
    "by the server of its module": (
        "robustness",
        '@pytest.mark.req("U1")\ndef test_it(server): print(server.port)\n',
    ),
    "by what it calls": (
        "durability",
        'def start():\n    return Busbar(".").start()\n@pytest.mark.req("U1")\ndef test_it(): start()\n',
    ),
}
NOT_REACHING = {
    "a suite without a server": ("unit", '@pytest.mark.req("U1")\ndef test_it(server: Busbar): pass\n'),
    "no server": ("spark", '@pytest.mark.req("D7")\ndef test_it(tmp_path): print(tmp_path)\n'),
    "a fixture that hides the server": (
        "robustness",
        '@pytest.fixture\ndef server(): return 1\n@pytest.mark.req("U1")\ndef test_it(server): print(server)\n',
    ),
    "a mark of the module": ("interop", 'pytestmark = [pytest.mark.req("U1")]\ndef test_it(): pass\n'),
    "a mark of a parameter": (
        "interop",
        '@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.req("U1"))])\ndef test_it(n): pass\n',
    ),
}


@pytest.mark.parametrize("case", [*REACHING, *NOT_REACHING])
def test_a_misplaced_mark_is_noticed(case: str) -> None:
    suite, text = (REACHING | NOT_REACHING)[case]
    module = parsed(TESTS / suite / "test_example.py", IMPORTS + text)
    assert bool(misplaced_marks(module)) == (case in NOT_REACHING)


def test_a_silent_return_is_noticed() -> None:
    text = (
        "def test_one(place):\n    if place:\n        return\n    assert 1\n"
        "async def test_two(place):\n    with place:\n        if place:\n            pass\n        else:\n"
        "            return\n"
        "def test_good(place):\n    def inner():\n        if place:\n            return 1\n    try:\n        inner()\n"
        "    except ValueError:\n        return\n    assert 1\n"
    )
    found = silent_returns(parsed(TESTS / "unit" / "test_example.py", text))
    assert [each.split()[-1] for each in found] == ["test_one", "test_two"]
