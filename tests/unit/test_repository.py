"""The rules of the repository that a machine can check (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from tools.mutate import MUTATIONS, Mutation, mutated, read_mutations
from tools.requirements import read_requirements

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
VAGUE = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "base2", "context"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def test_files_stay_small() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in long.items() if lines > 600} == {}


LONGEST_FUNCTION = 60


def long_functions(source: str, most: int) -> dict[str, int]:
    """The functions of a source that have more lines than `most`, from `def` to their end."""
    return {
        node.name: lines
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > most
    }


def test_functions_fit_on_a_screen_or_two() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "src" / "busbar").rglob("*.py")
        for name in long_functions(path.read_text(), LONGEST_FUNCTION)
    }
    assert found == set()


def test_a_long_function_is_found_wherever_it_stands() -> None:
    body = "\n".join("        x = 1" for _ in range(80))
    for head in ("    def f(self):", "    async def f(self):"):
        source = f"class C:\n{head}\n{body}\n"
        assert long_functions(source, 80) == {"f": 81} and long_functions(source, 81) == {}


def test_names_are_words_of_the_domain() -> None:
    assert [str(path) for path in SOURCES if {path.stem, path.parent.name} & VAGUE] == []


def test_every_dependency_is_pinned_exactly() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {normal(re.match(r"[\w.-]+", line)[0]) for line in wanted} - {"busbar-mq"}  # type: ignore[index]
    assert names - set(pins()) == set()


def test_pins_name_no_place() -> None:
    text = (ROOT / "constraints.txt").read_text() + (ROOT / "hashes.txt").read_text()
    assert "://" not in text
    assert "@" not in text
    for place in ("interop/js", "console/browser"):
        lock = json.loads((ROOT / "tests" / place / "package-lock.json").read_text())
        packages = [package for path, package in lock["packages"].items() if path]
        assert packages and all("resolved" not in package for package in packages)
        assert all(package["integrity"].startswith("sha512-") for package in packages)


def test_every_command_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    listing = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for command in phony[1].split():
        assert f"make {command} " in listing


def test_requirements_have_titles_and_no_gaps() -> None:
    ids = [row.id for row in read_requirements(ROOT)]
    for letter, last in (("P", 33), ("S", 18), ("B", 14), ("D", 7), ("U", 32)):
        assert [name for name in ids if name[0] == letter] == [f"{letter}{n}" for n in range(1, last + 1)]


def run_pytest(tmp_path: Path, body: str) -> tuple[int, str]:
    """Run one test file under the project's own configuration and plugins."""
    test = tmp_path / "test_example.py"
    test.write_text(body)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"),
        "-p", "tests.plugins.results", f"--results={tmp_path / 'results.json'}", str(test),
    ]  # fmt: skip
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def test_a_mark_with_an_unknown_requirement_fails_the_run(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, 'import pytest\n@pytest.mark.req("P99")\ndef test_it(): pass\n')
    assert code != 0
    assert "P99" in output


def test_a_requirement_is_proven_only_by_a_test_that_passed(tmp_path: Path) -> None:
    from tools.requirements import add_results

    body = (
        "import pytest\n"
        '@pytest.mark.req("P1", "P2")\ndef test_good(): pass\n'
        '@pytest.mark.req("P2")\ndef test_bad(): assert False\n'
        '@pytest.mark.req("P3")\ndef test_skipped(): pytest.skip("not now")\n'
    )
    run_pytest(tmp_path, body)
    rows = read_requirements(ROOT)
    add_results(rows, tmp_path)
    assert [row.id for row in rows if row.proven] == ["P1"]


def test_mutations_are_there() -> None:
    assert len(read_mutations()) == len(list(MUTATIONS.glob("*.toml"))) > 0


@pytest.mark.parametrize("mutation", read_mutations(), ids=lambda mutation: mutation.name)
def test_a_mutation_still_fits_its_code(mutation: Mutation) -> None:
    """`make deep` runs them; this keeps them from going stale in between."""
    assert mutated(mutation, ROOT) != (ROOT / mutation.file).read_text()
    assert mutation.tests, f"{mutation.name} names no test"
    for node in mutation.tests:
        file, _, name = node.partition("::")
        function = re.sub(r"\[.*", "", name.rpartition("::")[2]) or "test_"  # a file names all its tests
        assert f"def {function}" in (ROOT / file).read_text(), f"{mutation.name}: there is no test {node}"
    known = {row.id for row in read_requirements(ROOT)}
    assert not mutation.requirement or mutation.requirement in known


def test_the_map_shows_every_room_and_only_files_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = [path.parent.name for path in (ROOT / "src" / "busbar").glob("*/__init__.py")]
    assert [room for room in rooms if f"**`busbar.{room}`**" not in text] == []
    names = set(re.findall(r"`([\w/*]+\.py)`", text))
    places = [ROOT, ROOT / "src" / "busbar", *(ROOT / "src" / "busbar" / room for room in rooms)]
    assert [name for name in names if not any(any(place.glob(name)) for place in places)] == []
