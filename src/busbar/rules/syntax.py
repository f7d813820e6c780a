"""What a SQL filter and a SQL action may say, before any message is there to say it of.

    filter      a predicate: comparisons, IN, LIKE, IS NULL, EXISTS, arithmetic, AND, OR, NOT; or a boolean value
    action      SET property = expression, REMOVE property; several, with or without semicolons between them

Keywords have no case. A name is plain, in [brackets] or in "quotes" (a closing one doubled inside), with `sys.` or `user.`
before it. Precedence, from the strongest: sign; * / %; + -; comparisons, IN, LIKE, IS; NOT; AND; OR. The grammar does not
tell predicates from values: whether `(a = 1) + 2` has a meaning is decided when it is evaluated.

The parser is LALR: linear in time and without recursion, whatever a client sends.
"""

from __future__ import annotations

from functools import cache

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from busbar.model.errors import ArgumentError

MAX_ACTIONS = 32

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
FUNCTIONS = {"newid": 0, "property": 1, "p": 1}

_GRAMMAR = r"""
filter: disjunction
actions: action (";"? action)* ";"?
action: "SET"i property "=" disjunction -> set
      | "REMOVE"i property -> remove

?disjunction: conjunction ("OR"i conjunction)*
?conjunction: negation ("AND"i negation)*
?negation: "NOT"i negation | comparison
?comparison: sum
           | sum COMPARE sum
           | sum EQUALS sum
           | sum "IS"i "NOT"i? "NULL"i
           | sum "NOT"i? "IN"i "(" sum ("," sum)* ")"
           | sum "NOT"i? "LIKE"i sum ("ESCAPE"i sum)?
?sum: product (("+" | "-") product)*
?product: sign (("*" | "/" | "%") sign)*
?sign: ("+" | "-") sign | primary
?primary: "(" disjunction ")"
        | "EXISTS"i "(" property ")"
        | call
        | property
        | "@" name -> parameter
        | NUMBER | STRING | "TRUE"i | "FALSE"i | "NULL"i
call: NAME "(" (disjunction ("," disjunction)*)? ")"
property: name | NAME "." name
name: NAME | BRACKETED | QUOTED

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
    return Lark(_GRAMMAR, parser="lalr", start=["filter", "actions"])


def check_filter(expression: str) -> None:
    """Raises ArgumentError for what is not a SQL filter, with the place where it goes wrong."""
    _check_words(_parse(expression, "filter", "filter"))


def check_action(expression: str) -> None:
    """Raises ArgumentError for what is not a SQL action."""
    tree = _parse(expression, "actions", "action")
    if len(tree.children) > MAX_ACTIONS:
        raise ArgumentError(
            f"The SQL action has {len(tree.children)} statements; at most {MAX_ACTIONS} are allowed."
        )
    _check_words(tree)


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
    """Names that the grammar leaves open: functions, scopes, system properties."""
    for node in tree.iter_subtrees():
        if node.data == "call":
            function, *arguments = node.children
            takes = FUNCTIONS.get(str(function).lower())
            if takes is None or len(arguments) != takes:
                raise ArgumentError(
                    f"'{function}' with {len(arguments)} arguments is not a function; there are newid(), property(name) "
                    "and p(name)."
                )
        elif node.data == "property" and len(node.children) == 2:
            scope, name = node.children
            if str(scope).lower() not in ("sys", "user"):
                raise ArgumentError(f"'{scope}' is not a scope of properties; 'sys' and 'user' are.")
            plain = _plain(name)
            if str(scope).lower() == "sys" and plain.lower() not in SYSTEM_PROPERTIES:
                raise ArgumentError(f"'sys.{plain}' is not a system property.")


def _plain(name: Token | Tree[Token]) -> str:
    text = str(name.children[0]) if isinstance(name, Tree) else str(name)
    if text[0] == "[":
        return text[1:-1].replace("]]", "]")
    if text[0] == '"':
        return text[1:-1].replace('""', '"')
    return text
