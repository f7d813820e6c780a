"""The grammar of SQL filters and SQL actions, and the checks that need no message.

    filter      a predicate: comparisons, IN, LIKE, IS NULL, EXISTS, arithmetic, AND, OR, NOT; or a boolean value
    action      SET property = expression, REMOVE property; several, with or without semicolons between them

Keywords have no case. A name is plain, in [brackets] or in "quotes" (a closing one doubled inside), with `sys.` or `user.`
before it. Precedence, from the strongest: sign; * / %; + -; comparisons, IN, LIKE, IS; NOT; AND; OR. The grammar does not
distinguish predicates from values: whether `(a = 1) + 2` has a meaning is decided when it is evaluated.

The parser is LALR: linear in time and without recursion, for any input. It returns a tree in which an operator is between
its operands, and every form has its own name; evaluation.py compiles it to a function. Evaluation is recursive, so
operations nest at most MAX_NESTING deep. Brackets do not count, and neither does a long chain of one operator.

Errors that need no message are found here: unknown functions, scopes and system properties, system properties that cannot be
set, numbers that no long can hold.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from busbar.model.errors import ArgumentError

MAX_ACTIONS: Final = 32
MAX_NESTING: Final = 128
"""Maximum depth of operations within operations. 1,024 characters are enough for about a hundred useful ones."""
MAX_LONG: Final = 2**63 - 1

_NO_OPERATIONS: Final = frozenset(("name", "property", "filter", "actions", "set", "remove"))

SYSTEM_PROPERTIES = frozenset(
    {
        "contenttype",
        "correlationid",
        "label",
        "subject",
        "messageid",
        "replyto",
        "replytosessionid",
        "sessionid",
        "to",
        "timetolive",
        "enqueuedtimeutc",
        "enqueuedsequencenumber",
        "sequencenumber",
        "deliverycount",
        "partitionkey",
        "viapartitionkey",
        "scheduledenqueuetimeutc",
        "lockeduntilutc",
        "expiresatutc",
        "deadlettersource",
        "forcepersistence",
        "state",
        "size",
    }
)
SETTABLE = frozenset(
    {
        "contenttype",
        "correlationid",
        "label",
        "subject",
        "messageid",
        "replyto",
        "replytosessionid",
        "sessionid",
        "to",
        "partitionkey",
        "viapartitionkey",
        "scheduledenqueuetimeutc",
        "forcepersistence",
    }
)
"""The system properties that an action can set: those that senders set, and that belong to the copy itself."""
FUNCTIONS = {"newid": 0, "property": 1, "p": 1}

_GRAMMAR = r"""
filter: disjunction
actions: action (";"? action)* ";"?
action: "SET"i property "=" disjunction -> set
      | "REMOVE"i property -> remove

?disjunction: conjunction ("OR"i conjunction)*
?conjunction: negation ("AND"i negation)*
?negation: "NOT"i negation -> denial
         | comparison
?comparison: sum
           | sum COMPARE sum -> compare
           | sum EQUALS sum -> compare
           | sum "IS"i "NULL"i -> is_null
           | sum "IS"i "NOT"i "NULL"i -> is_not_null
           | sum "IN"i "(" sum ("," sum)* ")" -> is_in
           | sum "NOT"i "IN"i "(" sum ("," sum)* ")" -> is_not_in
           | sum "LIKE"i sum ("ESCAPE"i sum)? -> like
           | sum "NOT"i "LIKE"i sum ("ESCAPE"i sum)? -> not_like
?sum: product ((PLUS | MINUS) product)*
?product: sign (FACTOR sign)*
?sign: PLUS sign -> plus
     | MINUS sign -> minus
     | primary
?primary: "(" disjunction ")"
        | "EXISTS"i "(" property ")" -> exists
        | call
        | property
        | "@" name -> parameter
        | NUMBER
        | STRING
        | "TRUE"i -> true
        | "FALSE"i -> false
        | "NULL"i -> null
call: NAME "(" (disjunction ("," disjunction)*)? ")"
property: name | NAME "." name
name: NAME | BRACKETED | QUOTED

PLUS: "+"
MINUS: "-"
FACTOR: "*" | "/" | "%"
EQUALS: "="
COMPARE: "<>" | "!=" | ">=" | "<=" | ">" | "<"
NAME: /(?!(?:AND|OR|NOT|IS|IN|LIKE|ESCAPE|EXISTS|NULL|TRUE|FALSE|SET|REMOVE)\b)[^\W\d]\w*/i
BRACKETED: /\[(?:[^\]]|\]\])+\]/
QUOTED: /"(?:[^"]|"")+"/
STRING: /'(?:[^']|'')*'/
NUMBER: /(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?/
%ignore /\s+/
"""


@cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", start=["filter", "actions"], propagate_positions=True)


def check_filter(expression: str) -> None:
    """Check a SQL filter. Raises ArgumentError with the position of the fault."""
    parse_filter(expression)


def check_action(expression: str) -> None:
    """Check a SQL action. Raises ArgumentError."""
    parse_action(expression)


def parse_filter(expression: str) -> Tree[Token] | Token:
    """Parse a predicate. Raises ArgumentError."""
    tree = _parse(expression, "filter", "filter")
    _check_words(tree)
    return tree.children[0]


def parse_action(expression: str) -> list[Tree[Token]]:
    """Parse the statements: `set` with a property and an expression, `remove` with a property. Raises ArgumentError."""
    tree = _parse(expression, "actions", "action")
    if len(tree.children) > MAX_ACTIONS:
        raise ArgumentError(
            f"The SQL action has {len(tree.children)} statements; at most {MAX_ACTIONS} are allowed."
        )
    _check_words(tree)
    statements = [statement for statement in tree.children if isinstance(statement, Tree)]
    for statement in statements:
        _check_target(statement)
    return statements


def _parse(expression: str, start: str, what: str) -> Tree[Token]:
    try:
        return _parser().parse(expression, start=start)
    except UnexpectedEOF:
        raise ArgumentError(f"The SQL {what} '{expression}' ends too early.") from None
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise ArgumentError(f"The SQL {what} '{expression}' ends too early.") from None
        raise ArgumentError(
            f"The SQL {what} '{expression}' makes no sense at '{error.token}' (character {error.column})."
        ) from None
    except UnexpectedCharacters as error:
        raise ArgumentError(
            f"The SQL {what} '{expression}' has a character that means nothing there (character {error.column})."
        ) from None
    except UnexpectedInput:
        raise ArgumentError(f"The SQL {what} '{expression}' makes no sense.") from None


def _check_words(tree: Tree[Token]) -> None:
    """Check what the grammar leaves open: functions, scopes, system properties, the size of numbers, nesting."""
    nesting: dict[int, int] = {}
    for node in tree.iter_subtrees():  # children come before their parents
        depth = 0
        for child in node.children:
            if isinstance(child, Tree):
                depth = max(depth, nesting[id(child)])
            elif child.type == "NUMBER":
                _check_number(child)
        nesting[id(node)] = depth if node.data in _NO_OPERATIONS else depth + 1
        if nesting[id(node)] > MAX_NESTING:
            raise ArgumentError(f"The SQL expression nests operations more than {MAX_NESTING} deep.")
        if node.data == "call":
            function, *arguments = node.children
            takes = FUNCTIONS.get(str(function).lower())
            if takes is None or len(arguments) != takes:
                raise ArgumentError(
                    f"'{function}' with {len(arguments)} arguments is not a function; there are newid(), property(name) "
                    "and p(name)."
                )
        elif node.data == "property":
            scope, name = property_name(node)
            if scope not in ("sys", "user"):
                raise ArgumentError(
                    f"'{node.children[0]}' is not a scope of properties; 'sys' and 'user' are."
                )
            if scope == "sys" and name.lower() not in SYSTEM_PROPERTIES:
                raise ArgumentError(f"'sys.{name}' is not a system property.")


def _check_number(token: Token) -> None:
    if token.isdecimal() and (len(token.lstrip("0")) > 19 or int(token) > MAX_LONG):
        raise ArgumentError(
            f"The number {token[:40]} is larger than {MAX_LONG}; with a decimal point it is a double."
        )


def _check_target(statement: Tree[Token]) -> None:
    target = statement.children[0]
    assert isinstance(target, Tree)
    scope, name = property_name(target)
    if scope == "sys" and statement.data == "remove":
        raise ArgumentError(f"'sys.{name}' cannot be removed; only user properties can.")
    if scope == "sys" and name.lower() not in SETTABLE:
        raise ArgumentError(f"'sys.{name}' cannot be set.")


def property_name(node: Tree[Token]) -> tuple[str, str]:
    """The scope of a property, in lower case, and its name as it is written."""
    *scope, name = node.children
    return (str(scope[0]).lower() if scope else "user"), plain_name(name)


def plain_name(name: Token | Tree[Token]) -> str:
    """A name without its brackets or quotes."""
    text = str(name.children[0]) if isinstance(name, Tree) else str(name)
    if text[0] == "[":
        return text[1:-1].replace("]]", "]")
    if text[0] == '"':
        return text[1:-1].replace('""', '"')
    return text
