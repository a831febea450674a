"""Grammars of constrained replies: required or named tool calls, no calls, JSON of a schema.

A grammar is built from the request's `Constraint`, the parameter schemas of the tools, and the
format in which the policy's chat template writes calls, so that a constrained call looks like a
free one. The library llguidance computes the allowed next tokens; a `Grammar` follows one reply.
`engine/streams.py` samples with it, and `constrained.py` runs it again over recorded tokens for
training: a grammar is a pure function of the tokenizer, the tools and the constraint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from tutelage.errors import SCHEMA_FIELD, ConstraintError, EngineError
from tutelage.types import JSON, Constraint, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from tutelage.policy.codec import Codec

Words = NDArray[np.int32]
"""A set of tokens, one bit each, least significant first."""

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The white space of `json.dumps`; with free white space a model may never stop writing it."""

_CACHE_LIMIT = 500

_NAMES, _ARGUMENTS = ("zqa", "zqb"), r'\{\s*"zqc"\s*:\s*1\s*\}'
_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>")


@dataclass(frozen=True, slots=True)
class _CallForm:
    """Delimiters of a tool-call format."""

    before: str
    middle: str
    after: str
    between: str
    several: bool
    """True if a turn may hold more than one call."""


_FORMS = {
    "hermes": _CallForm('<tool_call>{"name": "', '", "arguments": ', "}</tool_call>", "", True),
    "llama": _CallForm('{"name": "', '", "parameters": ', "}", "", False),
}


@dataclass(frozen=True, slots=True)
class ConstrainedSpan:
    """A constrained reply within a training row.

    It has the reply's first column, the number of allowed tokens at each of its columns, and the
    inputs of its grammar.
    """

    start: int
    allowed: tuple[int, ...]
    tools: tuple[ToolSpec, ...]
    constraint: Constraint


class Grammar:
    """A compiled grammar for constrained replies. `start` returns a copy that matches one reply,
    token by token."""

    def __init__(self, text: str, tokenizer: LLTokenizer, field: str) -> None:
        """Compile a grammar. Raises `ConstraintError` with `field` if the grammar is invalid."""
        from llguidance import LLMatcher

        self.text = text
        self._matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(text), log_level=0)
        reason = self._matcher.get_error()
        if not reason and not np.frombuffer(self._matcher.compute_bitmask(), np.uint8).any():
            reason = "no reply can match it"
        if reason or self._matcher.is_error():
            raise ConstraintError(
                f"`{field}` cannot be enforced: {_shorten(reason)}; change the schema", field
            )

    def continuation(self, ids: Sequence[int]) -> Grammar | None:
        """Return the grammar for the rest of a reply that begins with `ids`, or None if the ids are
        invalid."""
        rest = self.start()
        return rest if rest._matcher.consume_tokens(list(ids)) else None

    def start(self) -> Self:
        """Return a copy that matches one reply from its first token."""
        rest = copy(self)
        rest._matcher = self._matcher.deep_copy()
        return rest

    def fill_bitmask(self, words: Words) -> None:
        """Write the allowed next tokens as a bit mask, least significant bit first.

        Raises `EngineError` if no token is allowed or the grammar exceeds the library's limits.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        words[:] = 0
        words[: len(mask)] = mask[: len(words)]
        if self._matcher.is_error():
            raise EngineError(f"grammar error: {self._matcher.get_error()}")
        if not words.any():
            raise EngineError("the grammar allows no further token")

    def accept(self, token: int) -> None:
        """Advance by one token. Raises `EngineError` if the token is not allowed."""
        if not self._matcher.consume_token(token):
            raise EngineError(
                f"the grammar does not allow token {token}: {self._matcher.get_error()}"
            )


class GrammarMaker:
    """Builder of grammars for one codec, with a cache."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._cache: dict[str, Grammar | None] = {}

    def make(self, tools: Sequence[ToolSpec], constraint: Constraint) -> Grammar | None:
        """Build the grammar for a reply, or return None if it is unconstrained.

        Raises `ConstraintError` for an unknown tool, a required call without tools, and schemas
        that cannot be satisfied or are not supported.
        """
        choice, schema = constraint.tool_choice, constraint.json_schema
        choices = constraint.choices
        free = not tools and choice == "none" and schema is None and not choices
        if constraint == Constraint() or free:
            return None  # without tools there are no calls to forbid
        records = [t.to_dict() for t in tools]
        key = json.dumps([records, choice, constraint.parallel_tool_calls, schema, choices])
        if key not in self._cache:
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[key] = self._build(tools, constraint)
        return self._cache[key]

    def _build(self, tools: Sequence[ToolSpec], constraint: Constraint) -> Grammar | None:
        choice, schema = constraint.tool_choice, constraint.json_schema
        if constraint.choices:
            texts = " | ".join(json.dumps(c, ensure_ascii=False) for c in constraint.choices)
            rules = ["start: thought choice", f"choice: {texts}", *self._text_rules()]
            return Grammar("\n".join(["%llguidance {}", *rules, ""]), self._ll_tokenizer, "choices")
        if choice == "required" and not tools:
            raise ConstraintError("`tool_choice` 'required' needs `tools`", "tool_choice")
        usable = [t for t in tools if choice != "none" and choice in ("auto", "required", t.name)]
        if not usable and choice not in ("none", "auto"):
            names = ", ".join(repr(t.name) for t in tools) or "none"
            raise ConstraintError(
                f"`tool_choice` names an unknown tool {choice!r}; the tools are {names}",
                "tool_choice",
            )
        calls = self._call_rules(usable, constraint)
        if schema is not None and choice in ("auto", "none"):
            rules, start = [f"document: {_json_rule(schema)}"], "document"
            if calls and choice == "auto":
                rules += calls
                start = "document | thought calls"
        elif choice == "none" or (choice == "auto" and calls):
            if self._codec.call_format == "llama":
                return None  # calls are plain text in this format, and a turn has at most one
            rules = calls if choice == "auto" else []
            if rules and "<tool_call>" not in self._added_tokens():
                raise ConstraintError(
                    "`parallel_tool_calls`: false cannot be enforced for this model, which has no "
                    "special token for tool calls; leave it out or set `tool_choice`",
                    "parallel_tool_calls",
                )
            start = "TEXT? calls?" if rules else "TEXT?"
        elif calls:
            rules, start = calls, "thought calls"
        else:
            return None
        # Compile each schema by itself first, so that an error names the invalid one.
        schemas = [(f"tools.{t.name}.parameters", _argument_schema(t)) for t in usable]
        for field, part in [*schemas, *([] if schema is None else [(SCHEMA_FIELD, schema)])]:
            Grammar(f"%llguidance {{}}\nstart: {_json_rule(part)}\n", self._ll_tokenizer, field)
        text = "\n".join(["%llguidance {}", f"start: {start}", *rules, *self._text_rules(), ""])
        return Grammar(text, self._ll_tokenizer, "tool_choice" if schema is None else SCHEMA_FIELD)

    def _call_rules(self, tools: Sequence[ToolSpec], constraint: Constraint) -> list[str]:
        """Return the grammar rules for tool calls, or an empty list without tools."""
        if not tools:
            return []
        form = self._call_form
        named = constraint.tool_choice not in ("auto", "required", "none")
        several = form.several and constraint.parallel_tool_calls and not named
        repeat = f"({self._literal_rule(form.between)} call)*" if several else ""
        names = " | ".join(f"call_{i}" for i in range(len(tools)))
        rules = [f"calls: call {repeat}", f"call: {names}"]
        for i, tool in enumerate(tools):
            name = json.dumps(tool.name, ensure_ascii=False)[1:-1]
            before = self._literal_rule(form.before + name + form.middle)
            after = self._literal_rule(form.after)
            rules.append(f"call_{i}: {before} {_json_rule(_argument_schema(tool))} {after}")
        return rules

    def _text_rules(self) -> list[str]:
        """Return the grammar rules for text without calls and for the thought before a call."""
        rules = [_exclusion_rule("TEXT", "<tool_call>")]
        if "</think>" in self._added_tokens():
            rules.append(_exclusion_rule("THOUGHT", "</think>"))
            close = f"THOUGHT {self._literal_rule('</think>')} /\\s*/"
        else:  # text up to the first closing tag
            rules.append("thought_end[lazy]: /(.|\\n)*<\\/think>/")
            close = "thought_end /\\s*/"
        opening = self._codec.render_text([Message("user", "x")])
        if opening.rstrip().endswith("<think>"):
            return [*rules, f"thought: {close}"]
        if "<think>" in str(self._codec.tokenizer.chat_template):
            return [*rules, f"thought: ({self._literal_rule('<think>')} {close})?"]
        return [*rules, 'thought: ""']

    def _added_tokens(self) -> dict[str, int]:
        """Return the tokens added to the tokenizer's base vocabulary, with their ids."""
        return cast("Any", self._codec.tokenizer).get_added_vocab()

    def _literal_rule(self, text: str) -> str:
        """Return a grammar rule for a fixed text, with token references for tags in the
        vocabulary."""
        vocabulary = self._added_tokens()
        pieces = re.split("(" + "|".join(re.escape(t) for t in _TAGS) + ")", text)
        return " ".join(
            f"<[{vocabulary[p]}]>" if p in vocabulary else json.dumps(p, ensure_ascii=False)
            for p in pieces
            if p or len(pieces) == 1
        )

    @cached_property
    def _call_form(self) -> _CallForm:
        """Detect the chat template's tool-call format by rendering a call.

        Falls back to the usual format of the template's kind.
        """
        default = _FORMS[self._codec.call_format]
        count = 2 if default.several else 1
        calls = tuple(ToolCall(f"zq{i}", _NAMES[i], '{"zqc": 1}') for i in range(count))
        turns = [Message("user", "x"), Message("assistant", None, calls)]
        text = self._codec.render_text(turns, open_turn=False)
        call = rf"(\{{[^{{]*){_NAMES[0]}(.*?){_ARGUMENTS}([^}}]*\}})()"
        if default.several:
            call = rf"(<tool_call>[^<]*){_NAMES[0]}(.*?){_ARGUMENTS}(.*?</tool_call>)(\s*)"
            call += rf"\1{_NAMES[1]}\2{_ARGUMENTS}\3"
        match = re.search(call, text, re.DOTALL)
        if match is None or '"name"' not in match[1]:
            return default
        return _CallForm(*match.groups(), several=default.several)

    @cached_property
    def _ll_tokenizer(self) -> LLTokenizer:
        """Tokenizer in llguidance's format, cached because the conversion takes up to a second.

        Where only one text can follow, the library encodes it, and would turn the text of a special
        token into that token. So special tokens are renamed to strings that do not occur in texts.
        """
        from llguidance.hf import from_tokenizer
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        tokenizer = cast("Any", self._codec.tokenizer)
        names = {
            json.dumps(token.content, ensure_ascii=False): f'"<\ufdd0{i}>"'
            for i, token in tokenizer.added_tokens_decoder.items()
            if token.special or re.fullmatch("<.+>", token.content)  # the library's own rule
        }
        pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")
        try:
            if isinstance(tokenizer, PreTrainedTokenizerFast):
                text = pattern.sub(
                    lambda match: names[match[0]], tokenizer.backend_tokenizer.to_str()
                )
                tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text))
            return from_tokenizer(tokenizer, eos_token=sorted(self._codec.eos_ids))
        except ValueError as error:
            raise ConstraintError(
                f"this model does not support constrained replies: {_shorten(str(error))}; leave "
                "out `tool_choice` and `response_format`",
                "tool_choice",
            ) from error


def _argument_schema(tool: ToolSpec) -> JSON:
    """Return the JSON schema of a tool's arguments, always with type object."""
    return {"type": "object", **tool.parameters}


def _json_rule(schema: JSON) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _STYLE}, ensure_ascii=False)


def _exclusion_rule(name: str, text: str) -> str:
    """Return a grammar rule for any text that does not contain `text`."""
    escaped = re.escape(text).replace("/", "\\/")
    return f"{name}: /(.|\\n)*/ & ~/(.|\\n)*{escaped}(.|\\n)*/"


def _shorten(reason: str) -> str:
    """Remove the excerpt of the grammar from the library's error message."""
    text = " ".join(line.strip() for line in reason.split("\n   1 |")[0].splitlines())
    text = re.sub(r"^at \d+\(\d+\): |failed to compile JSON schema: ", "", text).strip()
    return text or "it is not supported"
