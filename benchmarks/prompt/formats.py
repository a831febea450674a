"""How requests to an optimiser LLM are read, whoever writes them: text, evidence, form of reply.

One table of forms for ours, gepa's, dspy's and agentlightning's requests, so that the simulated
optimisers of `worlds.py` and `manifest.py` know no framework: they get an `Asked` and give a text.
Whatever is not a request to an optimiser reads as None. Standard library only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["critique", "edit", "other"]
Form = Literal["tags", "fence", "plain", "fields", "json"]


@dataclass(frozen=True)
class Asked:
    """A request to an optimiser LLM, read."""

    kind: Kind
    current: str
    """The text to improve; empty where the request shows none."""
    evidence: str
    """All else that the request holds: rollouts, feedback, critiques."""
    one_point: bool
    """Whether it asks for a single change."""
    form: Form
    fields: tuple[str, ...] = ()
    """Output fields that a dspy request names."""

    def wrap(self, text: str) -> str:
        """A text in the form that the request asks for."""
        if self.form == "tags":
            return f"I would change this:\n<prompt>\n{text}\n</prompt>"
        if self.form == "fence":
            return f"Here is the new text.\n```\n{text}\n```"
        if self.form == "plain":
            return text
        said = {name: text if name in _PROMPTS else "Short requests." for name in self.fields}
        if self.form == "json":
            return json.dumps(said)
        parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in said.items()]
        return "\n\n".join([*parts, "[[ ## completed ## ]]"])


_PROMPTS = ("new_instruction", "proposed_instruction", "shortened_instruction")
_ONE = re.compile(r"only the most important|ONE critique point", re.DOTALL)
_TAG = re.compile(r"<current>\n(.*?)\n</current>", re.DOTALL)
_GEPA = re.compile(r"instructions to perform a task for me:\n```\n(.*?)\n```", re.DOTALL)
_AGL_EDIT = re.compile(
    r"(?:# Prompt Template|### PROMPT)\n\n(.*?)\n\n(?:# Critique|### CRITIQUE)\n", re.DOTALL
)
_AGL_CRITIQUE = re.compile(
    r"# (?:Original |Current )?Prompt(?: Template)?\n\n(.*?)\n\n"
    r"# (?:Experiments with|Sample Runs)",
    re.DOTALL,
)
_FIELD = r"\[\[ ## {} ## \]\]\n(.*?)(?=\n\n\[\[ ##|\n\nRespond with|\Z)"
_DSPY = re.compile(_FIELD.format("(?:current_instruction|basic_instruction)"), re.DOTALL)
_OUTPUTS = re.compile(r"Your output fields are:\n(.*?)(?:\n\S*All interactions|\n\n|\Z)", re.DOTALL)


def read(text: str) -> Asked | None:
    """The request whose messages make up `text`, or None where it is none to an optimiser."""
    if found := _TAG.search(text):
        kind: Kind = "edit" if "<prompt>" in text else "critique"
        form: Form = "tags" if kind == "edit" else "plain"
        return Asked(kind, found[1], _rest(text, found), bool(_ONE.search(text)), form)
    if found := _GEPA.search(text):
        return Asked("edit", found[1], _rest(text, found), False, "fence")
    if found := _AGL_EDIT.search(text):
        return Asked("edit", found[1], _rest(text, found), bool(_ONE.search(text)), "plain")
    if found := _AGL_CRITIQUE.search(text):
        return Asked("critique", found[1], _rest(text, found), False, "plain")
    if outputs := _OUTPUTS.search(text):
        fields = tuple(re.findall(r"`(\w+)`", outputs[1]))
        kind = "edit" if any(name in _PROMPTS for name in fields) else "other"
        form = "json" if "JSON" in text else "fields"
        # The system message shows the form with the fields' names in it; the request comes last.
        found = max(_DSPY.finditer(text), key=lambda m: m.start(), default=None)
        current = found[1].strip() if found else ""
        return Asked(kind, current, _rest(text, found), False, form, fields)
    return None


def _rest(text: str, found: re.Match[str] | None) -> str:
    return text if found is None else text[: found.start()] + text[found.end() :]
