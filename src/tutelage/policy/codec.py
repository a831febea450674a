"""The codec: messages to token ids and back, for any tokenizer with a chat template.

Rendering is the tokenizer's own template. Two things go beyond it. `observation` gives the tokens
that follow a sampled turn (tool results and the opening of the next turn), so that a conversation
is continued by appending and what was sampled is never encoded again. `parse` reads tool calls from
sampled ids and keeps every byte: what cannot be read stays in the content, with a reason that the
agent shows to the model. Special tokens that an observation spells stay a text (`markers.py`).
`template.py` is the embedded policy's template, `grammar.py` says what a constrained reply may be;
no torch is needed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, cast

from tutelage.bounded import parse_json
from tutelage.errors import ModelError
from tutelage.policy.grammar import GrammarMaker
from tutelage.policy.markers import SpecialTokens
from tutelage.policy.named_templates import template_advice
from tutelage.policy.prompt_length import check_length
from tutelage.policy.template_forms import template_forms
from tutelage.policy.thoughts import Thoughts
from tutelage.replies import split_thought
from tutelage.types import JSON, THOUGHTS, Constraint, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tutelage.policy.grammar import Grammar
    from tutelage.replies import ThoughtMarks

_CACHE_LIMIT = 20_000
_MARK, _PROBE = "\u00a7", "zq_probe"


@dataclass(frozen=True, slots=True)
class _ParsedTurn:
    """What a sampled turn says: the message, and what looked like a tool call but was none."""

    message: Message
    errors: tuple[str, ...]
    thought: str = ""
    """The beginning of the content that is a thought, in which nothing is a call."""


class Codec:
    """One tokenizer's view of chat; cheap to make. Another thread may `render` and `encode` beside
    the one that it belongs to, since both only add to a cache; the rest is not thread-safe."""

    strips = True  # white space at the ends of what a turn says

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, source: str = "the tokenizer"
    ) -> None:
        """Raises `ModelError` when the tokenizer has no chat template or no end-of-turn token."""
        self.tokenizer, self._source = tokenizer, source
        template = getattr(tokenizer, "chat_template", None)
        if not template:
            raise ModelError(
                f"{source} has no chat template, so messages cannot be rendered. Use an "
                f"instruction-tuned checkpoint, or {template_advice(tokenizer)}"
            )
        text = str(template)
        if tokenizer.eos_token_id is None:
            raise ModelError(f"{source} has no end-of-turn token: set `eos_token` in its config")
        self.call_format = "llama" if "ipython" in text and "<tool_call>" not in text else "hermes"
        vocabulary = tokenizer.get_vocab()
        ends = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>"} & vocabulary.keys()
        own = int(cast("int", tokenizer.eos_token_id))
        self.eos_ids = frozenset({own, *(vocabulary[token] for token in ends)})
        pad = tokenizer.pad_token_id
        self.pad_id = own if pad is None else int(cast("int", pad))
        self._ids_in_template = "tool_call_id" in text
        self._markers = SpecialTokens(tokenizer)
        self._joins = self.decode([*self.encode("<"), *self.encode("|x|>")]) == "<|x|>"
        """Whether a text may be encoded in pieces."""
        self._grammars = GrammarMaker(self)
        self._prompts: dict[Any, tuple[int, ...]] = {}
        self._frames: dict[Any, tuple[str, ...] | None] = {}
        names = [str(tokenizer.convert_ids_to_tokens(i)) for i in sorted(self.eos_ids)]
        self.thoughts = Thoughts(text, self._templated, names)

    @cached_property
    def knows_tools(self) -> bool:
        """Whether the chat template shows a tool that it is given, which is tried."""
        tool = ToolSpec(_PROBE, _PROBE, {"type": "object", "properties": {}})
        try:
            return _PROBE in self._templated(
                *template_forms([Message("user", "?")], [tool]), True, {}
            )
        except ModelError:  # one that refuses this talk may show tools in another
            return "tools" in str(self.tokenizer.chat_template)

    @cached_property
    def shows_reasoning(self) -> bool:
        """Whether the chat template shows reasoning apart from the content of a turn, which is
        tried."""
        turn = {"role": "assistant", "content": "?", **dict.fromkeys(THOUGHTS, _PROBE)}
        try:
            return _PROBE in self._templated(
                [{"role": "user", "content": "?"}, turn], [], False, {}
            )
        except ModelError:
            return False

    # ------------------------------------------------------------ rendering

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, special tokens in it recognised, none added."""
        if not text.isascii():  # half a surrogate pair, which JSON may spell, is no character
            text = text.encode("utf-8", "replace").decode()
        return self.tokenizer.encode(text, add_special_tokens=False, verbose=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, open_turn: bool = True
    ) -> str:
        """The template's text; `open_turn` opens the assistant's turn at the end."""
        return self._apply(*template_forms(messages, tools), None, open_turn)

    def _apply(
        self, messages: list[JSON], tools: list[JSON], breaker: str | None, open_turn: bool
    ) -> str:
        """The template's text, with special tokens in contents broken by `breaker`.

        Raises `ModelError` for tools that the template would leave out.
        """
        if tools and not self.knows_tools:
            raise ModelError(
                f"the chat template of {self._source} ignores tools, so the model would never "
                f"see {tools[0]['function']['name']!r}: {template_advice(self.tokenizer)}"
            )
        messages = [self._markers.message(m, breaker) for m in messages]
        tools = tools if breaker is None else self._markers.broken(tools, breaker)
        return self._templated(messages, tools, open_turn, {})

    def _templated(
        self, messages: list[JSON], tools: list[JSON], open_turn: bool, options: JSON
    ) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tools=cast("Any", tools or None),
                add_generation_prompt=open_turn,
                tokenize=False,
                **options,
            )
        except Exception as error:
            raise ModelError(
                f"cannot render the chat template: {type(error).__name__}: {error}"
            ) from error
        return cast("str", text)

    def _encode_broken(self, text: str, breaker: str | None, most: int | None = None) -> list[int]:
        """Ids of a template's text; what `breaker` breaks is encoded as the text it is."""
        if most is not None:
            check_length(text if breaker is None else text.replace(breaker, ""), most, self.encode)
        if breaker is None or breaker not in text:
            return self.encode(text)
        if not self._joins:  # its pieces would begin with blanks of their own
            return self.encode(text.replace(breaker, "\u200b"))
        return [token for piece in text.split(breaker) for token in self.encode(piece)]

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), most: int | None = None
    ) -> tuple[int, ...]:
        """Prompt ids of a conversation whose next turn is the assistant's.

        Raises `ContextOverflowError` for one that is far longer than a context of `most` tokens.
        """
        seen = tuple((t.name, t.description, json.dumps(t.parameters)) for t in tools)
        key = (tuple(messages), seen)
        numbers = self._prompts.get(key)
        if numbers is None:
            given, records = template_forms(messages, tools)
            breaker = self._markers.breaker([*given, *records])
            text = self._apply(given, records, breaker, open_turn=True)
            numbers = tuple(self._encode_broken(text, breaker, most))
            if len(self._prompts) >= _CACHE_LIMIT:
                self._prompts.clear()
            self._prompts[key] = numbers
        return numbers

    def shared_length(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], ids: Sequence[int]
    ) -> int:
        """How many leading tokens any conversation with this system prompt and these tools has."""
        system = [*takewhile(lambda m: m.role == "system", messages)]
        # Questions that begin with different tokens.
        first, second = (self.render([*system, Message("user", x)], tools) for x in ("x", "?"))
        columns = enumerate(zip(first, second, ids, strict=False))
        return next((i for i, column in columns if len({*column}) > 1), 0)

    def observation(
        self, reply: Message, results: Sequence[Message], most: int | None = None
    ) -> tuple[int, ...] | None:
        """Ids to append after a sampled turn that ended with its end-of-turn token.

        They hold `results` and open the next assistant turn. None when the template does not simply
        append (it rewrites earlier turns): then the conversation must be rendered afresh. `most` is
        that of `render`.
        """
        breaker, frame = self._markers.breaker(template_forms([*results, reply])[0]), None
        plain = all(self._markers.plain(t) for r in results for t in (r.name, r.tool_call_id))
        if plain and all(r.content and not r.tool_calls for r in results):
            frame = self._frame(reply, results)
        if frame is None:
            text = self._delta(reply, results, breaker)
        else:
            forms = [self._markers.message(f, breaker) for f in template_forms(results)[0]]
            text = _fill(frame, [form["content"] for form in forms])
        return None if text is None else tuple(self._encode_broken(text, breaker, most))

    def _frame(self, reply: Message, results: Sequence[Message]) -> tuple[str, ...] | None:
        """The texts around the contents of results, kept for others like them; None when the
        template changes contents."""
        thinks = self.thoughts.closing in (reply.content or "")
        key = (len(reply.tool_calls), thinks, tuple((r.role, r.name) for r in results))
        if self._ids_in_template:
            ids = (*(c.id for c in reply.tool_calls), *(r.tool_call_id for r in results))
            key = (key, ids)
        if key not in self._frames:
            marks = [replace(r, content=f"{_MARK}{i}{_MARK}") for i, r in enumerate(results)]
            text = self._delta(reply, marks, None)
            parts = () if text is None else tuple(re.split(f"{_MARK}\\d+{_MARK}", text))
            # What templates are known to do to contents: trim, quote as JSON, escape as HTML.
            probe = [replace(r, content=f"\n \"\\<&{_MARK}'{i} \n") for i, r in enumerate(results)]
            probed, kept = [r.content or "" for r in probe], len(parts) == len(results) + 1
            kept = kept and _fill(parts, probed) == self._delta(reply, probe, None)
            self._frames[key] = parts if kept else None
        return self._frames[key]

    def _delta(self, reply: Message, results: Sequence[Message], breaker: str | None) -> str | None:
        """What the template adds after the end-of-turn token of an assistant turn."""
        forms = template_forms([reply, *results])[0]
        turn, *more = (self._markers.message(form, breaker) for form in forms)
        return self.thoughts.follows(turn, more)

    def choose_thinking(
        self, history: Literal["keep", "drop"] | None, max_tokens: int | None
    ) -> None:
        """See `Thoughts.choose`."""
        self._prompts, self._frames = {}, {}
        self.thoughts.choose(history, max_tokens)

    def demonstration(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids and mask of a finished conversation: 1 on what the assistant wrote, its end included.

        Turns are encoded piece by piece, as they would have been sampled and observed. In a
        message's `extra`, reasoning (`THOUGHTS`) goes to the template, and a `weight` of 0 keeps a
        turn from being trained. Raises `ModelError` when the template does not simply append.
        """
        ids: list[int] = []
        mask: list[int] = []
        known = ""
        given, records = template_forms(messages, tools)
        for form, message in zip(given, messages, strict=True):
            form.update({name: text for name in THOUGHTS if (text := message.extra.get(name))})
        breaker = self._markers.breaker([*given, *records])
        for i, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before = self._apply(given[:i], records, breaker, open_turn=True)
            after = self._apply(given[: i + 1], records, breaker, open_turn=False)
            at = self.thoughts.end_of_turn(after)
            if not before.startswith(known) or not after.startswith(before) or at < len(before):
                raise ModelError(
                    "the chat template rewrites earlier turns, so a multi-turn demonstration "
                    "cannot be masked exactly; use one turn per row, or another template"
                )
            own = int(message.extra.get("weight") != 0)
            for text, trained in ((before[len(known) :], 0), (after[len(before) : at], own)):
                piece = self._encode_broken(text, breaker)
                ids += piece
                mask += [trained] * len(piece)
            known = after[:at]
        return tuple(ids), tuple(mask)

    # ------------------------------------------------------------ parsing

    def grammar(self, tools: Sequence[ToolSpec], constraint: Constraint | None) -> Grammar | None:
        """The grammar of a reply under a constraint, None when nothing is constrained.

        Raises `ConstraintError` when the constraint cannot be enforced.
        """
        return None if constraint is None else self._grammars.make(tools, constraint)

    def parse(
        self,
        ids: Sequence[int],
        new_id: Callable[[int], str],
        *,
        calls: bool = True,
        document: bool = False,
    ) -> _ParsedTurn:
        """Read a sampled turn. `new_id(i)` names its i-th tool call; without `calls` all is text,
        whatever it looks like. A `document` has no thought unless one is closed."""
        body = list(ids[:-1]) if ids and ids[-1] in self.eos_ids else list(ids)
        text = self.decode(body)
        thought, answer = split_thought(text, cast("ThoughtMarks", self.thoughts))
        if document and not answer:
            thought, answer = "", text
        turn = _ParsedTurn(Message("assistant", answer.strip() or None), ())
        if calls:
            read = _parse_llama if self.call_format == "llama" else _parse_hermes
            turn = read(answer, new_id)
        if not thought:
            return turn
        content = (thought + (turn.message.content or "")).strip() or None
        return _ParsedTurn(replace(turn.message, content=content), turn.errors, thought.lstrip())


def _fill(frame: tuple[str, ...], contents: Sequence[str]) -> str:
    return "".join(f + c for f, c in zip(frame, [*contents, ""], strict=True))


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BLANK, _ENDS = re.compile(r"\s*"), re.compile(rf"\s*(?:{_CLOSE}|\Z)")


def _parse_hermes(text: str, new_id: Callable[[int], str]) -> _ParsedTurn:
    calls: list[ToolCall] = []
    errors: list[str] = []
    kept: list[str] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0:
        kept.append(text[at:start])
        begin = start + len(_OPEN)
        end = _call_end(text, begin)
        at = min(end + len(_CLOSE), len(text))
        call = _read_call(text[begin:end], "arguments", new_id(len(calls)))
        if isinstance(call, ToolCall) and at > end:
            calls.append(call)
            continue
        reason = call if isinstance(call, str) else "the call is not closed by </tool_call>"
        errors.append(f"{reason} in {text[start:at]!r}")
        kept.append(text[start:at])
    kept.append(text[at:])
    if _CLOSE in "".join(kept) and not errors:
        errors.append("</tool_call> without <tool_call>")
    content = "".join(kept).strip()
    return _ParsedTurn(Message("assistant", content or None, tuple(calls)), tuple(errors))


def _call_end(text: str, begin: int) -> int:
    """Where the tag that closes a call lies: after its JSON value, whose strings may spell tags, or
    the first one where no JSON value fills the call; the text's length without a tag."""
    end = begin
    try:
        value = cast("re.Match[str]", _BLANK.match(text, begin)).end()
        end = json.JSONDecoder().raw_decode(text, value)[1]
    except (ValueError, RecursionError):
        pass  # `_read_call` says what is wrong
    at = text.find(_CLOSE, end if _ENDS.match(text, end) else begin)
    return at if at >= 0 else len(text)


def _parse_llama(text: str, new_id: Callable[[int], str]) -> _ParsedTurn:
    body = text.removeprefix("<|python_tag|>").strip()
    if not body.startswith("{") or '"name"' not in body:
        return _ParsedTurn(Message("assistant", text.strip() or None), ())
    call = _read_call(body, "parameters", new_id(0))
    if isinstance(call, ToolCall):
        return _ParsedTurn(Message("assistant", None, (call,)), ())
    return _ParsedTurn(Message("assistant", text.strip() or None), (f"{call} in {body!r}",))


def _read_call(text: str, field: str, call_id: str) -> ToolCall | str:
    """A tool call, or what is wrong with its JSON, with the position."""
    try:
        data = parse_json(text)
    except json.JSONDecodeError as error:
        return f"the call is not valid JSON at position {error.pos}"
    except ValueError as error:
        return f"the call cannot be read: {error}"
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return f'the call needs the form {{"name": ..., "{field}": {{...}}}}'
    fields = cast("dict[str, Any]", data)
    arguments = fields.get(field, {})
    if isinstance(arguments, str):
        return ToolCall(call_id, fields["name"], arguments)
    if not isinstance(arguments, dict):
        return f'"{field}" must be an object, not {type(arguments).__name__}'
    written = json.dumps(arguments)
    for found in re.finditer(rf'"{field}"\s*:\s*', text):
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(text, found.end())
            written = text[found.end() : end] if value == arguments else written
    return ToolCall(call_id, fields["name"], written)
