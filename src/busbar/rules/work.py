"""Limits the work that the rules of a topic do for one message.

Work is counted in steps; a step is about the time of comparing one character. Operations that read every character of a
value count their steps before they begin: LIKE, texts that are added, compared with each other, set, or used as a name.
Everything else is bounded by the length of the expression.

- A rule has RULE_STEPS for its filter, and as many for its action. Rules are evaluated one after the other.
- All rules of a topic together have MESSAGE_STEPS for one message.
- If an operation would take more, it is an EvaluationError, like a division by zero.

Values of up to UNCOUNTED characters cost nothing: most properties are short, and counting would take longer than comparing.
"""

from __future__ import annotations

from typing import Final, final

from busbar.rules.values import MAX_TEXT, EvaluationError

RULE_STEPS: Final = 64 * MAX_TEXT
"""The longest text 64 times: as many plain LIKEs as an expression has room for, or one of the most expensive."""
MESSAGE_STEPS: Final = 8 * RULE_STEPS
UNCOUNTED: Final = 128
AT_ONCE: Final = 8
"""Characters that one step copies, or compares with as many others."""
FOLDED: Final = 2
"""Steps for a character of a name, whose case is folded."""


@final
class Work:
    """The steps that the rules of a topic have spent on one message."""

    __slots__ = ("_limit", "_part", "spent")

    def __init__(self) -> None:
        self.spent = 0
        self._part: object = None
        self._limit = 0

    def spend(self, part: object, steps: int) -> None:
        """Spend steps; `part` is the filter or the action that spends them, and steps of others do not count for it. Raises
        EvaluationError if there are not enough left; then none of them is spent."""
        if part is not self._part:  # a rule that counts nothing has no cost for being registered
            self._part = part
            self._limit = min(self.spent + RULE_STEPS, MESSAGE_STEPS)
        if self.spent + steps > self._limit:
            raise EvaluationError(_refusal(self._limit == MESSAGE_STEPS))
        self.spent += steps


def _refusal(of_message: bool) -> str:
    if of_message:
        return f"the rules of the topic need more than {MESSAGE_STEPS} steps for this message, which is their limit together"
    return f"the rule needs more than {RULE_STEPS} steps for this message, which is the limit of a rule"
