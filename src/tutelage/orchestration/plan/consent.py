"""Whether a request asks for what a plan would change: a plain rule of words.

A planner that chooses tools by what a request is about takes "do not delete a.txt" for "delete
a.txt", and the wrong file of two. Where a plan has a tool with side effects, these therefore make
it a plan that nobody is sure of: a word that forbids, excepts, limits or puts off, a question, and
a file or address that is named and not taken, or is taken for another step.
`cli/orchestrate_planner.py` and `execution/system.py` ask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tutelage.orchestration.plan.dag import NoPlanError, Plan
from tutelage.orchestration.plan.named import misread, texts_in, verb
from tutelage.orchestration.plan.spans import spans
from tutelage.tools.tool import Tool

_KEPT = (
    r"keep\b(?! (?:track|going|me|us)\b)"
    r"(?! (?:it|that|this|them|_+) as\b(?! (?:is|it|they|before)\b))"
    r"(?! (?:it|that|this|them) (?:in(?! place)|under|at)\b)(?! a (?:list|log|note|record)\b)"
    r"(?! (?:an?|the|my|its|their|another|one)(?: [\w-]+){0,2} (?:copy|backup|version|results?"
    r"|output|summary|total|translation)\b[^.!?;]{0,200} (?:as|in|into|under|at|named|called)\b)"
    r"|(?:leave|skip)(?: out)? _+(?:(?:,|,? and|,? or) _+)*(?= *(?:[.!?;,]|$))"
    r"|leave\b[^.!?;]{0,200}\b(?:be|there|in place|out|where (?:it is|they are))"
    r"(?=\W{0,9}(?:[.!?;,]|$))"
    r"|preserve|retain|omit|exclude|spare (?:_+|the|my|our|all|every\w*|th[eo]se|it|them)"
)
"""What is to stay; a copy or a result that is kept somewhere is written there. Paths are `_`."""
_LIMIT = (
    r"\b(?:not|cannot|donot|\w*n['’´`ʼ]t|(?:do|ca|wo|sha|does|should|would|could|must)nt"
    r"|never|no(?= +\w|\W*$)|none|nothing|nobody|no one|neither|nor|undelete|undo"
    r"|avoid|prevent|stop|refrain|forbid\w*|prohibit\w*|pretend"
    r"|(?:cancel|skip|halt|block|hold off)(?: on)?(?: the)?(?= \w+(?:ing|ion)\b)"
    rf"|{_KEPT}|alone|untouched|unchanged|intact|as (?:it is|they are)|dry run|maybe|perhaps"
    r"|except|excluding|but|besides|without|unless|other than|apart from|instead of|rather than"
    r"|only|if|whether|when|whenever|once(?! *(?:[.!]|$))|until|before you|provided|in case"
    r"|why|how to|how (?:do|can|could|should|would))\b"
)
_ORDERS = frozenset(
    {"avoid", "prevent", "stop", "skip", "halt", "block", "hold", "cancel", "undo", "undelete"}
    | {"forbid", "prohibit", "refrain", "remind", "tell", "ask", "keep", "leave", "preserve"}
    | {"retain", "omit", "exclude", "spare"}
)
"""Words of these that are an order where a tool is named or described by them."""
_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_LATER = (
    r"^\W*(?:tomorrow|tonight|later)\b|\b(?:tomorrow|tonight|later|next \w+"
    rf"|on (?:{_DAYS})|at (?:midnight|noon|night)|(?:in the|this) (?:morning|afternoon|evening)"
    r"|in \w+ (?:minute|hour|day|week|month)s?)\W*$"
)
_OTHERS = r"(?:^|[.!?:;,]\s)\W{0,200}(?:please\W+)?(?:remind|tell|ask|have)\s+(?:me|us|\w+)\s+to\b"
"""Another is asked to do it."""
_HELPERS = (
    "should|shall|must|may|might|can|could|will|would|do|does|did|is|are|was|were|has|have|had"
)
_QUESTION = (
    r"(?:^|[.!?:;,]\s)\W{0,200}(?:(?:and|so|please|hey|hi|hello|well)\b\W*)*"
    rf"(?:(?:who|whom|whose)\b|(?:what|which|where|how)\b(?!.*[?.!]\s+\w)"
    rf"|(?:{_HELPERS})\s+(?:i|we|he|she|they|any\w*|some\w*)\b"
    rf"|(?:do|does|did|have|had|are|were)\s+you\b|(?:{_HELPERS})\s+(?!you\b)[^!?]{{0,400}}\?"
    r"|(?:is|are|was|were|has|had|should|shall|must|may(?!\s+\d)|might)\s+(?!you\b)\S)"
)
"""A question that is no polite request, such as "can you ...?". One with another sentence after it
may have been asked for that: "What is 3 + 4? Write it to sum.txt." """
_INDIRECT = r"\b(?:tell|know|wonder\w*|explain|say|ask|see|check|find out)(?: \w+)? who\b"
_DOUBTED = (
    r"^(?!.*\b(?:what|which|where|who|how|can|could|would|will)\b)[^?]*\?\s+\S"
    r"|\b(?:hold on|imagine|suppose|assum(?:e|ing)|hypothetical\w*|wants? (?:someone|\w+body) to"
    r"|\w+ wants to|zero|would be(?! (?:lovely|nice|great|good|fine|perfect|\w+ful)))\b"
)
"""What is asked back, made up, or another's wish."""
_UNSURE = re.compile(
    f"{_LIMIT}|{_DOUBTED}|{_LATER}|{_OTHERS}|{_QUESTION}|{_INDIRECT}", re.IGNORECASE | re.DOTALL
)
_WORD = re.compile(rf"{_LIMIT}|(?:who\w*|what|which|where|{_HELPERS})", re.IGNORECASE)
"""A word that limits, or asks, and is no value whatever a plan takes it for."""
_CONTENT = ("quoted", "url", "email", "path", "file")
"""Kinds of spans whose words say nothing of what is to be done."""


def limited(request: str) -> str:
    """The first words by which a request forbids, asks or limits what it speaks of, else nothing.

    Texts in quotes, addresses and paths do not count.
    """
    said = _unquoted(request)
    found = _UNSURE.search(said)
    return (
        ""
        if found is None
        else " ".join(request[found.start() : found.end()].strip(" .,:;!?").split()[:4])
    )


def _unquoted(request: str) -> str:
    said = request
    for span in spans(request):
        if span.kind in _CONTENT:
            said = said[: span.start] + "_" * (span.end - span.start) + said[span.end :]
    return said if re.search(r"[^\W_]", said) else request


def _past(word: str) -> str:
    """What a verb is where something was done; regular ones alone."""
    return rf"(?<!\bthe )(?<!\ban )(?<!\ba )(?<!\bmy )(?<!\bof ){word.removesuffix('e')}ed"


def check_consent(plan: Plan, tools: Mapping[str, Tool], *, trained: bool = True) -> None:
    """Raise `NoPlanError` where a plan has a tool that says it has side effects, and its request
    forbids, asks or limits what that would do; of one by the `trained` planner also where it names
    what the plan does not take, or takes for another step. What the plan takes over as an argument,
    a text or a day, forbids nothing."""
    changing = [
        index
        for index, node in enumerate(plan.nodes)
        if node.tool in tools and tools[node.tool].destructive and not tools[node.tool].assumed
    ]
    nodes = [plan.nodes[index] for index in changing]
    said = plan.instruction
    for text in [text for node in nodes for text in texts_in(node.arguments) if text.strip()]:
        # What is most of the request says what is to be done, and so does a word that limits.
        if 2 * len(text) < len(said) and not _WORD.fullmatch(text.strip()):
            whole = rf"(?<!\w)(?<!\w['’´`ʼ]){re.escape(text)}(?!\w)"
            said = re.sub(whole, "_" * len(text), said)
    names = dict.fromkeys(node.tool for node in nodes)
    verbs = {word for n in names for word in (verb(n), verb(tools[n].description)) if word}
    for word in verbs.intersection(_ORDERS):
        said = re.sub(rf"\b{word}\b", "_" * len(word), said, flags=re.IGNORECASE)
    past = re.search(rf"\b(?:{'|'.join(map(_past, verbs))})\b", _unquoted(said), re.IGNORECASE)
    if names and (words := limited(said) or (past[0] if past and verbs else "")):
        raise NoPlanError(
            f"the request forbids, asks or limits what {', '.join(names)} would do ({words!r}), "
            "and the trained planner does not read that"
        )
    if trained and changing and (reason := misread(plan, changing, tools)):
        raise NoPlanError(f"the request {reason}; the trained planner does not read that")
