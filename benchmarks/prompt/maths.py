"""The math world: a task model that calls the tools it is offered when its prompt tells it to.

Told, it calls `sum_1_to_n`, `calculator` and `lookup` and reads the results; untold, it works in
its head and errs in typed ways: n*n/2 for the sum of 1 to n, a slip in a product, a made-up price.
The offer of tools alone seldom moves it. It plays over as many turns as it makes calls, with plain
tool calling, so any framework can be its agent. Tool descriptions count as words of the prompt,
where they insist ("always", "must"). Not a model; pure functions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.prompt.formats import Asked
from benchmarks.prompt.worlds import (
    Grade,
    Said,
    Vocabulary,
    World,
    chance,
    last_user,
    text_of,
)

ATTENTION = 90
TOLD, HALF_TOLD, FAR, UNTOLD = 0.98, 0.85, 0.3, 0.06
"""How often a tool is used: named in the prompt, meant by "tools", named too late, unmentioned."""
SKILLS: dict[str, tuple[str, str, str]] = {
    "sum_1_to_n": (
        "Always call sum_1_to_n to add up 1 to n.",
        r"sum_1_to_n",
        "sums of 1 to n were worked out without the tool",
    ),
    "calculator": (
        "Use the calculator for every calculation.",
        r"\bcalculator",
        "calculations were made in the head",
    ),
    "lookup": (
        "Look up each price with the tool lookup.",
        r"\blook(?:\s|-)?up",
        "prices were made up",
    ),
    "verify": (
        "Verify the answer against the result of the tool.",
        r"\bverify|\bdouble.check|\bcheck your",
        "a result of a tool was copied wrong",
    ),
    "form": (
        "End with the words: the answer is, and then the number alone.",
        r"answer is|final answer",
        "the reply named no answer",
    ),
}
"""Skill: the sentence that states it, how it is recognised, its symptom."""
DECOYS = (
    "You are a math expert.",
    "Show your work step by step.",
    "Think carefully.",
    "Be concise.",
    "Stay friendly.",
)
_SUM = re.compile(
    r"(?:from\s+)?1\s+(?:to|through|up to|bis|\.\.\.?)\s+(\d+)|first\s+(\d+)\s+"
    r"(?:\w+\s+)?(?:integers|numbers)|1\s*\+\s*2\s*\+.*\+\s*(\d+)",
    re.IGNORECASE,
)
_SHOP = re.compile(r"(?:price of|do|cost of|cost)\s+(\d+)\s+([a-z][a-z ]*?)(?:\s+cost)?[?.]", re.I)
_WORDS = {
    r"\btimes\b|\bmultiplied by\b|×|·": "*",
    r"\bdivided by\b|÷": "/",
    r"\bplus\b": "+",
    r"\bminus\b|−": "-",
}
_EXPRESSION = re.compile(r"[-(]?\d[\d\s+\-*/().^]*[\d)]")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*(?:%|percent)\s+of\s+(\d+(?:\.\d+)?)", re.I)


@dataclass(frozen=True)
class Plan:
    """What a question asks: its family, and the operands."""

    family: str
    n: int = 0
    expression: str = ""
    item: str = ""


class Maths(World):
    """See the module's docstring."""

    name = "math"
    seed_prompt = "You are a helpful assistant. Solve math problems."
    words = Vocabulary(
        {n: sentence for n, (sentence, _, _) in SKILLS.items()},
        {n: symptom for n, (_, _, symptom) in SKILLS.items()},
        DECOYS,
        lambda text: {n for n, (_, p, _) in SKILLS.items() if re.search(p, text, re.I)},
    )

    @property
    def phrases(self) -> tuple[str, ...]:
        """Right sentences and useless ones."""
        return self.words.phrases

    def task(self, split: str, index: int) -> dict[str, Any]:
        """Sums, products and mixed terms; those of the package are understood too."""
        kind = ("sum", "product", "mixed")[int(chance("kind", split, index) * 3)]
        a, b, c = (10 + int(chance(x, split, index) * 89) for x in "abc")
        n = 10 + int(chance("n", split, index) * 989)
        if kind == "sum":
            return {"question": f"What is the sum of 1 to {n}?", "expected": n * (n + 1) // 2}
        if kind == "product":
            return {"question": f"What is {a} * {b}?", "expected": a * b}
        return {"question": f"What is {a} * {b} + {c}?", "expected": a * b + c}

    def reply(
        self,
        system: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        n: int,
    ) -> Said:
        question = last_user(messages)
        plan = understand(question)
        if plan is None:
            return Said("I do not know how to work that out.")
        offered = {name: t for t in tools if (name := _name(t))}
        results = _results(messages)
        call = _next_call(plan, system, offered, results, question, n)
        if call is not None:
            name, value = call
            return Said("", ((name, json.dumps({_parameter(offered[name]): value})),))
        number = _answer(plan, results, system, question, n)
        return Said(_put(number, system, question, n))

    def grade(self, fields: Mapping[str, Any], reply: str) -> Grade:
        """1.0 exact, 0.5 to 1.0 within a tenth, else 0: the partial credit that hides n*n/2."""
        said = re.findall(r"-?\d+(?:\.\d+)?", reply)
        want = float(fields["expected"])
        if not said:
            return Grade(0.0, False, "no number")
        off = abs(float(said[-1]) - want) / max(1.0, abs(want))
        if off < 1e-9:
            return Grade(1.0, True, "right")
        return Grade(1 - 5 * off if off <= 0.1 else 0.0, False, f"expected {fields['expected']}")

    def criticise(self, asked: Asked, salt: str) -> str:
        return self.words.criticise(symptoms(asked.evidence), salt)

    def rewrite(self, asked: Asked, salt: str) -> str:
        return self.words.rewrite(asked, salt, symptoms(asked.evidence))


def understand(question: str) -> Plan | None:
    """The plan of a question in words, or None."""
    if found := _SUM.search(question):
        return Plan("sum", n=int(next(g for g in found.groups() if g)))
    if found := _SHOP.search(question):
        return Plan("shopping", n=int(found[1]), item=_singular(found[2].strip()))
    if found := _PERCENT.search(question):
        return Plan("arithmetic", expression=f"{found[1]}*{found[2]}/100")
    text = question
    for pattern, sign in _WORDS.items():
        text = re.sub(pattern, sign, text)
    spans = [m[0].strip() for m in _EXPRESSION.finditer(text)]
    spans = [s.replace("^", "**").replace(" ", "") for s in spans if re.search(r"[-+*/^]", s[1:])]
    spans = [s for s in spans if value_of(s) is not None]
    return Plan("arithmetic", expression=max(spans, key=len)) if spans else None


def value_of(expression: str) -> float | None:
    """Its value, or None where it is no arithmetic."""
    from tutelage.tools.expression import ExpressionError, evaluate

    try:
        return float(evaluate(expression))
    except (ExpressionError, OverflowError, ValueError):
        return None


def symptoms(evidence: str) -> str:
    """Symptoms that failed rollouts show, as text; what names them already stays as it is.

    A rollout is what stands between `<rollout>` tags, else the whole: its question tells the
    family, its trace whether the tool was called, its reward whether it failed.
    """
    blocks = re.findall(r"<rollout>(.*?)</rollout>", evidence, re.DOTALL)
    if not blocks:
        named = any(symptom in evidence for _, _, symptom in SKILLS.values())
        blocks = [] if named else [evidence]
    told = [evidence]
    for block in blocks:
        reward = re.search(r"(?:Reward|reward|score)\D{0,12}(\d(?:\.\d+)?)", block)
        if reward and float(reward[1]) >= 1:
            continue
        plan = understand(block)
        if plan is None:
            continue
        tool = {"sum": "sum_1_to_n", "arithmetic": "calculator", "shopping": "lookup"}[plan.family]
        trace = block[block.find("Trace:") :] if "Trace:" in block else block
        if tool not in trace:
            told.append(SKILLS[tool][2])
        elif plan.family == "shopping" and "calculator" not in trace:
            told.append(SKILLS["calculator"][2])
        else:
            told.append(SKILLS["verify"][2])
        if "comes out somewhere" in trace:
            told.append(SKILLS["form"][2])
    return "\n".join(told)


def _next_call(
    plan: Plan,
    system: str,
    offered: Mapping[str, Mapping[str, Any]],
    results: Sequence[str],
    question: str,
    n: int,
) -> tuple[str, Any] | None:
    """The tool that comes next, with its argument; None when it is time to answer."""

    def uses(tool: str) -> bool:
        if tool not in offered:
            return False
        odds = _odds(tool, system, str(_function(offered[tool]).get("description", "")))
        return chance("use", system, question, n, tool) < odds

    if plan.family == "sum" and not results and uses("sum_1_to_n"):
        return "sum_1_to_n", plan.n
    if plan.family == "arithmetic" and not results and uses("calculator"):
        return "calculator", plan.expression
    if plan.family == "shopping":
        looked = uses("lookup")
        if looked and not results:
            return "lookup", plan.item
        price = _number(results[0]) if looked and results else _guess(plan.item)
        if len(results) == int(looked) and price is not None and uses("calculator"):
            return "calculator", f"{plan.n}*{price:g}"
    return None


def _odds(skill: str, system: str, description: str = "") -> float:
    near = " ".join(system.split()[:ATTENTION])
    pattern = SKILLS[skill][1]
    if re.search(pattern, near, re.IGNORECASE):
        return TOLD
    if re.search(r"\b(?:always|every|must|whenever)\b", description, re.IGNORECASE):
        return TOLD
    if skill in ("sum_1_to_n", "calculator", "lookup") and re.search(r"\btools?\b", near, re.I):
        return HALF_TOLD
    return FAR if re.search(pattern, system, re.IGNORECASE) else UNTOLD


def _answer(plan: Plan, results: Sequence[str], system: str, question: str, n: int) -> float:
    """The number it gives: the last result, perhaps copied wrong, or what it has in its head."""
    last = _number(results[-1]) if results else None
    slips = chance("slip", system, question, n) < (0.01 if _odds("verify", system) > FAR else 0.05)
    if last is not None and not (plan.family == "shopping" and len(results) == 1 and plan.n):
        return last + 10 if slips else last
    if plan.family == "sum":
        return plan.n * plan.n / 2
    if plan.family == "shopping":
        price = last if last is not None else _guess(plan.item)
        return plan.n * price + (10 if chance("head", system, question, n) < 0.7 else 0)
    value = value_of(plan.expression) or 0.0
    hard = re.search(r"[*/]", plan.expression) is not None
    if chance("head", system, question, n) < (0.15 if hard else 0.6):
        return value
    size = 10 ** max(1, int(math.log10(max(10.0, abs(value)))) - (not hard))
    return value + size * (1 + int(chance("off", system, question, n) * 3))


def _put(number: float, system: str, question: str, n: int) -> str:
    text = f"{number:.10g}"
    if chance("form", system, question, n) < max(_odds("form", system), 0.7):
        return f"The answer is {text}."
    return f"It comes out somewhere about {text}, by my count of what was asked."


def _results(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tools have returned since the last question."""
    found: list[str] = []
    for message in messages:
        if message.get("role") == "user":
            found = []
        elif message.get("role") == "tool":
            found.append(text_of(message))
    return found


def _number(text: str) -> float | None:
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return float(found[-1]) if found else None


def _guess(item: str) -> float:
    return 5 + int(chance("price", item) * 60)


def _singular(plural: str) -> str:
    for ending, single in (("scarves", "scarf"), ("boxes", "box")):
        if plural.endswith(ending):
            return plural[: -len(ending)] + single
    return plural.removesuffix("s")


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) else tool


def _name(tool: Mapping[str, Any]) -> str:
    return str(_function(tool).get("name", ""))


def _parameter(tool: Mapping[str, Any]) -> str:
    """The name of the tool's first parameter."""
    schema = _function(tool).get("parameters") or {}
    return next(iter(schema.get("properties") or {"input": 0}))
