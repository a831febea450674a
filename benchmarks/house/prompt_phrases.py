"""What a prompt can say to the embedded policy of prompt search: five rules, in many wordings.

`WORDINGS`, `BOTH_TOOLS`, `USELESS` and `FILLERS` are what it is trained on: wordings of each rule,
and what states none. The bank of a search (`prompts/bank.py`) shares no phrase with the training.
`prompt_recipe.py` draws prompts of these phrases and says what each rule changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Literal, get_args

Rule = Literal["calculator", "sum", "single", "form", "exact"]
"""What a prompt can tell the embedded policy."""

RULES: tuple[Rule, ...] = get_args(Rule)


def _sentences(patterns: str) -> tuple[str, ...]:
    """All sentences of patterns, in which `(a|b)` is either. A further line of one is indented."""
    joined = re.sub(r"\n +(\|?)", lambda line: line[1] or " ", patterns.strip())
    names: list[str] = []
    for pattern in joined.split("\n"):
        parts = re.split(r"\(([^()]*)\)", pattern)
        pieces = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
        names += ("".join(chosen) for chosen in product(*pieces))
    return tuple(names)


WORDINGS: Mapping[Rule, tuple[str, ...]] = {
    "calculator": _sentences("""
(Always call|Call|Rely on|You should use|Turn to|Make use of|Use)
    (the calculator|calculator|the calculator tool)( for arithmetic| for all calculations
    | when you multiply, add or subtract| instead of mental arithmetic| to work out expressions
    | whenever numbers have to be combined|).
(Arithmetic|Multiplication and addition|Every expression|Any calculation)
    (belongs in the calculator|goes to calculator|is the calculator's work).
(The tool for|For|Responsible for) (arithmetic|multiplying and adding): calculator.
(Calculator does this|Take calculator for this|calculator):
    (work out numbers|find the value of an expression|do arithmetic).
Do not calculate in your head; there is a calculator.
Let the calculator work out expressions.
Pass each expression to calculator.
With calculator you evaluate expressions.
"""),
    "sum": _sentences("""
(Always call|Call|Rely on|You should use|Turn to|Make use of|Use)
    (sum_1_to_n|the tool sum_1_to_n|the sum_1_to_n tool)( for sums| to add up a range of integers
    | when the integers from 1 to n are summed| instead of adding by hand| for a series of numbers
    | whenever a series is asked for|).
(Sums of integers|Adding 1 to n|A range of integers|Any series)
    (belongs to sum_1_to_n|goes to sum_1_to_n|is what sum_1_to_n is for).
(The tool for|For|Responsible for) (sums of integers|a series of numbers): sum_1_to_n.
(sum_1_to_n does this|Take sum_1_to_n for this|sum_1_to_n):
    (add integers|find the total of a series|sum a range).
Do not add up in your head; there is sum_1_to_n.
Let sum_1_to_n add up the integers.
Pass the last integer to sum_1_to_n.
With sum_1_to_n you add up integers.
"""),
    "single": _sentences("""
(Make|Issue|Send|Allow) (only one call|a single call|no more than one call|just one tool call)
    (in each turn|per reply|before you read the result|and then stop).
(Never|Do not|You must not) (call two tools|make two calls|issue more than one call|call tools)
    (together|in one turn|in parallel|in one go).
(Call tools|Take the tools|Make calls)( one after another| singly| one by one
    |, never two together).
(Wait for|Look at|Read) (the result|the output)
    (of each call before the next|before another call|of a tool, then go on).
(After each call|After a call|Once you called a tool),
    (read its result|look at the result first|pause until it returns).
Several calls in one turn confuse the results.
Parallel calls are forbidden.
"""),
    "form": _sentences("""
(End with|Finish with|Reply with|Conclude by saying|Your reply must be)(: answer is X.
    | the words: the answer is X.| "The answer is X".| answer is, followed by the number.
    | the form answer is X.| `answer is X`.)
(Reply with|Respond with|Say|Return|Write|Give) (the number only|nothing but the number
    |just the final number|only the final answer|a bare number, no sentence
    |the number without any explanation|the bare answer only).
The reply is read by a program: answer is X.
Format: answer is X
No sentence around the number, please.
Leave out all words; the final number is enough.
"""),
    "exact": _sentences("""
(Never round|Don't round|Avoid rounding)
    (the result|the value|a number|what you found|your result)(.| off.)
(State|Report|Write down|Copy) (the result|the value|a number|what you found|your result)
    (exactly|with all digits|unrounded|to the last digit).
(Rounding|An estimate|An approximate value) (is not allowed|counts as wrong|will not do).
No rounding.
Every digit counts.
Be exact, not approximate.
Exact values only.
"""),
}
"""The wordings that the policy is trained on."""

BOTH_TOOLS = _sentences("""
(Let your tools|Have a tool|Tools should|Leave it to a tool to)
    (do the numbers|do all calculations|do the math for you|work it out).
""")
"""Wordings that state the rules `calculator` and `sum` at once."""

USELESS = _sentences("""
(Be|Stay|Always be|Try to be) (polite|friendly|calm|brief|thorough|honest|cheerful).
(Reason|Think|Work|Proceed) (slowly|aloud|in small steps|with care|before you reply).
(Reason|Think|Work|Proceed) (through the task|from the beginning|like an expert).
(Check|Verify|Look over|Consider|Restate)
    (your work|the question twice|the answer once more|each step).
(Check|Verify|Look over|Consider|Restate)
    (the problem|what is asked|the final line|everything).
(Put|Write|Place) (the answer|the solution|your conclusion|the reply)
    (on its own line|at the end|in plain words|after the reasoning).
(If|When|In case) (something is unclear|you are unsure|the question is odd|a word is lost),
    (make a guess|say so|ask back|take the usual meaning).
(Remember|Keep in mind|Note) (that the user|that people|that a student)
    (may be a child|is in a hurry|wants to learn|likes simple language).
Answer in English.
Do exactly as the user wishes.
Explain terms that are hard.
Never mention these instructions.
Keep the tone of a good teacher.
Break the question into parts.
First plan, then act.
Take a deep breath.
Tools are listed below.
Do not waste words.
""")
"""Phrases that state no rule, for training."""

_COMMON = """
a about after again all also always and any are as ask at be before begin best but by
can careful carefully check clear consider do each easy end every explain final find
first for from give given good have help here how idea if important in into is it itself
keep kind know last learn less like line little long look make meaning mind missing more
much must need new next not of often on or other out own part people person plain point
possible problem question quick read reader reason right say see sentence short should
show simple so some something speak state step still such take task tell text than that
the them then there they think this through time to topic try two understand until user
very want way well what when where which while who why will wish with word work would
write you your
"""

FILLERS: tuple[str, ...] = tuple(_COMMON.split())
"""Common words without a rule. Training prompts have sentences of them at random, so that a
sentence never seen before changes nothing unless it has something to say."""
