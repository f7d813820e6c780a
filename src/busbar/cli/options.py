"""Parameters that many commands share, written once.

`command` registers a function as a command. Its parameter `where` stands for the options that name a Busbar, its parameter
`properties` for the flags of a kind of entity. The function gets each of them as one value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from busbar.cli.endpoint import VARIABLE, where
from busbar.cli.entity_kinds import CommandProperty
from busbar.cli.failure import CommandFailure, CommandStopped, ExitCode
from busbar.cli.output import OutputFormat
from busbar.cli.short_help import SHORT_HELP

Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How it is printed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Skip = Annotated[int, typer.Option("--skip", min=0, metavar="N", help="Leave the first N out.")]
Top = Annotated[int | None, typer.Option("--top", min=1, metavar="N", help="At most N.", show_default="all")]
Topic = Annotated[
    str, typer.Option("--topic", "--topic-name", metavar="TOPIC", help="The topic it belongs to.")
]
Subscription = Annotated[
    str, typer.Option("--subscription", "--subscription-name", metavar="NAME", help="Its subscription.")
]

EXAMPLE_COLUMNS = 74

_WHERE = (
    (
        "connection_string",
        Annotated[
            str | None,
            typer.Option(
                "--connection-string",
                metavar="TEXT",
                help=f"Endpoint=sb://...; without it and --data, {VARIABLE}.",
            ),
        ],
        None,
    ),
    (
        "data",
        Annotated[
            Path | None,
            typer.Option(
                "--data",
                metavar="DIR",
                help="The one that serves this data directory.",
                show_default="./.busbar",
            ),
        ],
        None,
    ),
    (
        "ca",
        Annotated[
            Path | None,
            typer.Option(
                "--ca",
                metavar="FILE",
                help="With TLS, trust this authority too.",
            ),
        ],
        None,
    ),
)


def command(
    app: typer.Typer,
    *,
    examples: Sequence[str] = (),
    properties: Sequence[CommandProperty] = (),
    hide_fixed: bool = False,
    without: Sequence[str] = (),
    name: str | None = None,
    help: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command. `without` leaves out parameters that a kind does not have: the function gets them as
    empty text. With `hide_fixed`, properties that cannot change are accepted but not shown; the broker refuses them."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        declared = inspect.signature(function, eval_str=True).parameters
        shown: list[inspect.Parameter] = []
        for parameter in declared.values():
            if parameter.name == "where":
                shown += [_option(*option) for option in _WHERE]
            elif parameter.name == "properties":
                shown += [_property_option(item, hide_fixed and item.fixed) for item in properties]
            elif parameter.name not in without:
                shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        def run(**given: Any) -> None:
            passed: dict[str, Any] = dict.fromkeys(without, "")
            if "where" in declared:
                passed["where"] = where(given.pop("connection_string"), given.pop("data"), given.pop("ca"))
            if "properties" in declared:
                named = {item.element: given.pop(_variable(item)) for item in properties}
                passed["properties"] = {key: value for key, value in named.items() if value is not None}
            try:
                function(**passed, **given)
            except BrokenPipeError:  # Typer would end with the code of any failure
                raise CommandStopped(ExitCode.UNREAD) from None

        run.__name__ = function.__name__
        run.__doc__ = help or function.__doc__
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # Typer reads it
        run.__annotations__ = {}
        called = name or function.__name__.strip("_")
        short = SHORT_HELP.get(f"{app.info.name} {called}")
        app.command(called, epilog=_epilog(examples), short_help=short)(run)
        return function

    return register


def group(name: str, help: str) -> typer.Typer:
    """A command that has commands."""
    return typer.Typer(
        name=name, help=help, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def named(name: str | None, option: str | None, noun: str) -> str:
    """The one name that was given, as an argument or with --name. Raises CommandFailure."""
    if name is not None and option is not None and name != option:
        raise CommandFailure(f"two names: {name} and --name {option}; give one.", ExitCode.USAGE)
    found = name if name is not None else option
    if found is None:
        raise CommandFailure(f"which {noun}? Give its name.", ExitCode.USAGE)
    return found


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _property_option(item: CommandProperty, hidden: bool) -> inspect.Parameter:
    def parse(text: str) -> str:
        try:
            return item.parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from None

    annotation = Annotated[
        str | None,
        typer.Option(
            *item.flags,
            parser=parse,
            metavar=item.metavar,
            help=item.help,
            hidden=hidden,
        ),
    ]
    return _option(_variable(item), annotation, None)


def _variable(item: CommandProperty) -> str:
    return item.flags[0].removeprefix("--").replace("-", "_")


def _epilog(examples: Sequence[str]) -> str | None:
    if not examples:
        return None
    return "\b\nExamples:\n" + "\n".join(f"  {_in_lines(example)}" for example in examples)


def _in_lines(example: str) -> str:
    """An example as a shell takes it in several lines, each of which fits into 80 columns."""
    if len(example) <= EXAMPLE_COLUMNS:
        return example
    places = [
        place
        for mark in (" --", " | ")
        for place in range(EXAMPLE_COLUMNS - 2)
        if example.startswith(mark, place)
    ]
    if not places:
        return example
    rest = _in_lines(example[max(places) + 1 :])
    return f"{example[: max(places)]} \\\n      {rest}"
