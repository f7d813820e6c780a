"""Breaks the code on purpose, one promise at a time, and expects the tests that guard it to turn red.

A mutation is a TOML file in tests/mutations/:

    claim = "what the code promises, in a sentence"
    requirement = "U6"                  # optional
    file = "src/busbar/…/….py"
    old = '''text that occurs exactly once in the file'''
    new = '''what a mistake would put in its place'''
    tests = ["tests/unit/…/test_….py::test_…"]

Each runs in a copy of the tree, interpreted, so that nothing is rebuilt and the tree is not touched. The tests must
pass in the copy before the change and fail after it; a test that cannot even be collected proves nothing. They run at the
scale of `make test`, also in `make deep`.

    python tools/mutate.py              all of them
    python tools/mutate.py durable_ack  those named
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTATIONS = ROOT / "tests" / "mutations"
COPIED = (
    "src",
    "tests",
    "harness",
    "tools",
    "docs",
    "bench",
    "samples",
    "deploy",
    "pyproject.toml",
    "setup.py",
    "mkdocs.yml",
    *(path.name for path in sorted(ROOT.glob("*.md"))),
    "LICENSE",
)
PASSED, FAILED = 0, 1  # pytest's exit codes; all others mean that it could not do its work


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake, and the tests that must notice it."""

    name: str
    claim: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    requirement: str = ""


def read_mutation(path: Path) -> Mutation:
    data = tomllib.loads(path.read_text())
    return Mutation(
        name=path.stem,
        claim=data["claim"],
        file=data["file"],
        old=data["old"],
        new=data["new"],
        tests=tuple(data["tests"]),
        requirement=data.get("requirement", ""),
    )


def read_mutations(directory: Path = MUTATIONS) -> list[Mutation]:
    return [read_mutation(path) for path in sorted(directory.glob("*.toml"))]


def mutated(mutation: Mutation, root: Path) -> str:
    """The file's text with the mistake in it. Raises ValueError unless the old text occurs exactly once."""
    text = (root / mutation.file).read_text()
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(
            f"mutation {mutation.name}: its old text occurs {count} times in {mutation.file}, not once"
        )
    return text.replace(mutation.old, mutation.new)


def copy_tree(target: Path) -> None:
    ignore = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "*.egg-info")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, target / name)


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "BUSBAR_DEEP"} | {
        "BUSBAR_INTERPRETED": "1",
        "PYTHONPATH": str(tree / "src"),  # before the installed package, also for servers the tests start
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    result = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


def survives(tree: Path, mutation: Mutation) -> str:
    """Why the mutation was not caught; empty if it was."""
    target = tree / mutation.file
    original = target.read_text()
    try:
        broken = mutated(mutation, tree)
    except ValueError as error:
        return str(error)
    target.write_text(broken)
    try:
        code, output = run_tests(tree, mutation.tests)
    finally:
        target.write_text(original)
    if code == FAILED:
        return ""
    if code == PASSED:
        return "the tests still pass"
    return f"the tests could not run (exit code {code}):\n{output}"


def main() -> int:
    mutations = read_mutations()
    chosen = sys.argv[1:]
    unknown = set(chosen) - {mutation.name for mutation in mutations}
    if unknown:
        print(f"no mutation is named {', '.join(sorted(unknown))}")
        return 2
    if chosen:
        mutations = [mutation for mutation in mutations if mutation.name in chosen]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="busbar-mutations-") as scratch:
        tree = Path(scratch)
        copy_tree(tree)
        sound: dict[tuple[str, ...], str] = {}
        for mutation in mutations:
            began = time.monotonic()
            if mutation.tests not in sound:
                code, output = run_tests(tree, mutation.tests)
                sound[mutation.tests] = (
                    "" if code == PASSED else f"its tests fail before the change:\n{output}"
                )
            why = sound[mutation.tests] or survives(tree, mutation)
            survivors += bool(why)
            verdict = f"SURVIVED: {why}" if why else "caught"
            print(f"{mutation.name:<32} {time.monotonic() - began:6.1f} s  {verdict}", flush=True)
    print(f"{len(mutations) - survivors} of {len(mutations)} mutations caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
