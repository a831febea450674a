"""Convert messages to token ids and back, for any tokenizer with a chat template.

Messages are rendered with the tokenizer's own template. `encode_observation` returns the tokens
that follow a sampled turn (tool results and the start of the next turn), so that a conversation is
continued by appending and sampled tokens are never encoded again. `parse` reads tool calls from
sampled ids and keeps every byte: a malformed call stays in the content, with an error that the
agent shows to the model. Special tokens in an observation are encoded as plain text (`markers.py`).
`template.py` holds the embedded policy's template, `grammar.py` the grammars of constrained
replies. This module does not need torch.
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
from tutelage.replies import ThinkTags, split_thought
from tutelage.types import JSON, THOUGHTS, Constraint, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tutelage.policy.grammar import Grammar

_CACHE_LIMIT = 20_000
_MARK, _PROBE = "\u00a7", "zq_probe"


@dataclass(frozen=True, slots=True)
class _ParsedTurn:
    """Message parsed from a sampled turn, and the errors of its malformed tool calls."""

    message: Message
    errors: tuple[str, ...]
    thought: str = ""
    """The reasoning at the beginning of the content; it is not searched for tool calls."""


class Codec:
    """Converter between chat messages and token ids, for one tokenizer.

    `render` and `encode` may be called from another thread, since both only add to a cache; other
    methods are not thread-safe."""

    strips = True  # whether `parse` strips white space from the content of a turn

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, source: str = "the tokenizer"
    ) -> None:
        """Create a codec. Raises `ModelError` without a chat template or an end-of-turn token."""
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
        eos_id = int(cast("int", tokenizer.eos_token_id))
        self.eos_ids = frozenset({eos_id, *(vocabulary[token] for token in ends)})
        pad = tokenizer.pad_token_id
        self.pad_id = eos_id if pad is None else int(cast("int", pad))
        self._ids_in_template = "tool_call_id" in text
        self._markers = SpecialTokens(tokenizer)
        self._splittable = self.decode([*self.encode("<"), *self.encode("|x|>")]) == "<|x|>"
        """True if pieces of a text can be encoded separately."""
        self._grammars = GrammarMaker(self)
        self._prompts: dict[Any, tuple[int, ...]] = {}
        self._frames: dict[Any, tuple[str, ...] | None] = {}
        names = [str(tokenizer.convert_ids_to_tokens(i)) for i in sorted(self.eos_ids)]
        self.thoughts = Thoughts(text, self._render_template, names)

    @cached_property
    def supports_tools(self) -> bool:
        """Return True if the chat template renders tool definitions."""
        tool = ToolSpec(_PROBE, _PROBE, {"type": "object", "properties": {}})
        try:
            return _PROBE in self._render_template(
                *template_forms([Message("user", "?")], [tool]), True, {}
            )
        except ModelError:  # the template refuses these messages, but may still render tools
            return "tools" in str(self.tokenizer.chat_template)

    @cached_property
    def renders_reasoning(self) -> bool:
        """Return True if the chat template renders the reasoning of messages."""
        turn = {"role": "assistant", "content": "?", **dict.fromkeys(THOUGHTS, _PROBE)}
        try:
            return _PROBE in self._render_template(
                [{"role": "user", "content": "?"}, turn], [], False, {}
            )
        except ModelError:
            return False

    @cached_property
    def think_tags(self) -> ThinkTags:
        """Return the tags that delimit the model's thinking."""
        thoughts = self.thoughts
        return ThinkTags(thoughts.starts_open, thoughts.known, thoughts.opening, thoughts.closing)

    # ------------------------------------------------------------ rendering

    def encode(self, text: str) -> list[int]:
        """Tokenize text, mapping the special tokens in it to their ids but adding none."""
        if not text.isascii():  # JSON may contain a lone surrogate, which cannot be encoded
            text = text.encode("utf-8", "replace").decode()
        return self.tokenizer.encode(text, add_special_tokens=False, verbose=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Convert token ids to text, including special tokens."""
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def render_text(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, open_turn: bool = True
    ) -> str:
        """Render messages as text, with an open assistant turn if `open_turn` is True."""
        return self._apply_template(*template_forms(messages, tools), None, open_turn)

    def _apply_template(
        self, messages: list[JSON], tools: list[JSON], sep: str | None, open_turn: bool
    ) -> str:
        """Render messages with the chat template, escaping special tokens with `sep`.

        Raises `ModelError` if there are tools and the template ignores them.
        """
        if tools and not self.supports_tools:
            raise ModelError(
                f"the chat template of {self._source} ignores tools, so the model would never "
                f"see {tools[0]['function']['name']!r}: {template_advice(self.tokenizer)}"
            )
        messages = [self._markers.escape_message(m, sep) for m in messages]
        tools = tools if sep is None else self._markers.escape(tools, sep)
        return self._render_template(messages, tools, open_turn, {})

    def _render_template(
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

    def _encode_escaped(self, text: str, sep: str | None, limit: int | None = None) -> list[int]:
        """Tokenize rendered text so that special tokens escaped with `sep` stay plain text."""
        if limit is not None:
            check_length(text if sep is None else text.replace(sep, ""), limit, self.encode)
        if sep is None or sep not in text:
            return self.encode(text)
        if not self._splittable:  # the tokenizer would add a blank before each piece
            return self.encode(text.replace(sep, "\u200b"))
        return [token for piece in text.split(sep) for token in self.encode(piece)]

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), limit: int | None = None
    ) -> tuple[int, ...]:
        """Return the prompt token ids of a conversation, up to an open assistant turn.

        Raises `ContextOverflowError` if the prompt is far longer than a context of `limit` tokens.
        """
        tool_key = tuple((t.name, t.description, json.dumps(t.parameters)) for t in tools)
        key = (tuple(messages), tool_key)
        ids = self._prompts.get(key)
        if ids is None:
            forms, records = template_forms(messages, tools)
            sep = self._markers.find_separator([*forms, *records])
            text = self._apply_template(forms, records, sep, open_turn=True)
            ids = tuple(self._encode_escaped(text, sep, limit))
            if len(self._prompts) >= _CACHE_LIMIT:
                self._prompts.clear()
            self._prompts[key] = ids
        return ids

    def shared_length(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], ids: Sequence[int]
    ) -> int:
        """Return the length of the prompt prefix that contains only the system prompt and tools."""
        system = [*takewhile(lambda m: m.role == "system", messages)]
        # Two prompts with questions that begin with different tokens.
        first, second = (self.render([*system, Message("user", x)], tools) for x in ("x", "?"))
        columns = enumerate(zip(first, second, ids, strict=False))
        return next((i for i, column in columns if len({*column}) > 1), 0)

    def encode_observation(
        self, reply: Message, results: Sequence[Message], limit: int | None = None
    ) -> tuple[int, ...] | None:
        """Return the token ids to append after a sampled turn, to continue with tool results.

        They contain `results` and open the next assistant turn. Returns None if the template
        rewrites earlier turns: then the conversation must be rendered again. `limit` is the context
        length, as in `render`.
        """
        sep, frame = self._markers.find_separator(template_forms([*results, reply])[0]), None
        plain = all(self._markers.is_plain(t) for r in results for t in (r.name, r.tool_call_id))
        if plain and all(r.content and not r.tool_calls for r in results):
            frame = self._render_frame(reply, results)
        if frame is None:
            text = self._new_text(reply, results, sep)
        else:
            forms = [self._markers.escape_message(f, sep) for f in template_forms(results)[0]]
            text = _fill_frame(frame, [form["content"] for form in forms])
        return None if text is None else tuple(self._encode_escaped(text, sep, limit))

    def _render_frame(self, reply: Message, results: Sequence[Message]) -> tuple[str, ...] | None:
        """Render the text around the contents of tool results, with a cache.

        Returns None if the template changes contents.
        """
        has_thought = self.thoughts.closing in (reply.content or "")
        key = (len(reply.tool_calls), has_thought, tuple((r.role, r.name) for r in results))
        if self._ids_in_template:
            ids = (*(c.id for c in reply.tool_calls), *(r.tool_call_id for r in results))
            key = (key, ids)
        if key not in self._frames:
            marks = [replace(r, content=f"{_MARK}{i}{_MARK}") for i, r in enumerate(results)]
            text = self._new_text(reply, marks, None)
            parts = () if text is None else tuple(re.split(f"{_MARK}\\d+{_MARK}", text))
            # Detect templates that trim contents, quote them as JSON or escape them as HTML.
            probe = [replace(r, content=f"\n \"\\<&{_MARK}'{i} \n") for i, r in enumerate(results)]
            contents, valid = [r.content or "" for r in probe], len(parts) == len(results) + 1
            valid = valid and _fill_frame(parts, contents) == self._new_text(reply, probe, None)
            self._frames[key] = parts if valid else None
        return self._frames[key]

    def _new_text(self, reply: Message, results: Sequence[Message], sep: str | None) -> str | None:
        """Return the text that the template adds after an assistant turn to append tool results."""
        forms = template_forms([reply, *results])[0]
        turn, *rest = (self._markers.escape_message(form, sep) for form in forms)
        return self.thoughts.appended_text(turn, rest)

    def choose_thinking(
        self, history: Literal["keep", "drop"] | None, max_tokens: int | None
    ) -> None:
        """Set whether prompts include earlier thoughts, and the maximum tokens of a thought."""
        self._prompts, self._frames = {}, {}
        self.thoughts.choose(history, max_tokens)

    def encode_demonstration(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the token ids and loss mask of a finished conversation.

        The mask is 1 on assistant tokens, including the end-of-turn token. Turns are encoded piece
        by piece, as in sampling. From a message's `extra`, reasoning (`THOUGHTS`) is passed to the
        template, and a `weight` of 0 excludes a turn from training. Raises `ModelError` if the
        template rewrites earlier turns.
        """
        ids: list[int] = []
        mask: list[int] = []
        encoded = ""
        forms, records = template_forms(messages, tools)
        for form, message in zip(forms, messages, strict=True):
            form.update({name: text for name in THOUGHTS if (text := message.extra.get(name))})
        sep = self._markers.find_separator([*forms, *records])
        for i, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before = self._apply_template(forms[:i], records, sep, open_turn=True)
            after = self._apply_template(forms[: i + 1], records, sep, open_turn=False)
            end = self.thoughts.find_turn_end(after)
            if not before.startswith(encoded) or not after.startswith(before) or end < len(before):
                raise ModelError(
                    "the chat template rewrites earlier turns, so a multi-turn demonstration "
                    "cannot be masked exactly; use one turn per row, or another template"
                )
            weight = int(message.extra.get("weight") != 0)
            for text, trained in ((before[len(encoded) :], 0), (after[len(before) : end], weight)):
                piece = self._encode_escaped(text, sep)
                ids += piece
                mask += [trained] * len(piece)
            encoded = after[:end]
        return tuple(ids), tuple(mask)

    # ------------------------------------------------------------ parsing

    def grammar(self, tools: Sequence[ToolSpec], constraint: Constraint | None) -> Grammar | None:
        """Return the grammar that enforces a constraint on a reply, or None without a constraint.

        Raises `ConstraintError` if the constraint cannot be enforced.
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
        """Parse the token ids of a sampled turn into a message.

        `new_id(i)` returns the id of the turn's i-th tool call. If `calls` is False, tool calls are
        left in the text. If `document` is True, a thought is recognised only if it is closed.
        """
        body = list(ids[:-1]) if ids and ids[-1] in self.eos_ids else list(ids)
        text = self.decode(body)
        thought, answer = split_thought(text, self.think_tags)
        if document and not answer:
            thought, answer = "", text
        turn = _ParsedTurn(Message("assistant", answer.strip() or None), ())
        if calls:
            parse = _parse_llama if self.call_format == "llama" else _parse_hermes
            turn = parse(answer, new_id)
        if not thought:
            return turn
        content = (thought + (turn.message.content or "")).strip() or None
        return _ParsedTurn(replace(turn.message, content=content), turn.errors, thought.lstrip())


def _fill_frame(frame: tuple[str, ...], contents: Sequence[str]) -> str:
    return "".join(f + c for f, c in zip(frame, [*contents, ""], strict=True))


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_SPACE, _CALL_ENDS = re.compile(r"\s*"), re.compile(rf"\s*(?:{_CLOSE}|\Z)")


def _parse_hermes(text: str, new_id: Callable[[int], str]) -> _ParsedTurn:
    calls: list[ToolCall] = []
    errors: list[str] = []
    content_parts: list[str] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0:
        content_parts.append(text[at:start])
        begin = start + len(_OPEN)
        end = _find_call_end(text, begin)
        at = min(end + len(_CLOSE), len(text))
        call = _read_call(text[begin:end], "arguments", new_id(len(calls)))
        if isinstance(call, ToolCall) and at > end:
            calls.append(call)
            continue
        reason = call if isinstance(call, str) else "the call is not closed by </tool_call>"
        errors.append(f"{reason} in {text[start:at]!r}")
        content_parts.append(text[start:at])
    content_parts.append(text[at:])
    if _CLOSE in "".join(content_parts) and not errors:
        errors.append("</tool_call> without <tool_call>")
    content = "".join(content_parts).strip()
    return _ParsedTurn(Message("assistant", content or None, tuple(calls)), tuple(errors))


def _find_call_end(text: str, begin: int) -> int:
    """Return the position of the closing tag of a tool call.

    It is the tag after the call's JSON value, whose strings may contain tags, or the first tag if
    the JSON is invalid. Without a tag, the length of the text is returned.
    """
    end = begin
    try:
        value = cast("re.Match[str]", _SPACE.match(text, begin)).end()
        end = json.JSONDecoder().raw_decode(text, value)[1]
    except (ValueError, RecursionError):
        pass  # `_read_call` reports the error
    at = text.find(_CLOSE, end if _CALL_ENDS.match(text, end) else begin)
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
    """Parse the JSON of a tool call, or return an error message if it is invalid."""
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
    source = json.dumps(arguments)
    for match in re.finditer(rf'"{field}"\s*:\s*', text):
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(text, match.end())
            source = text[match.end() : end] if value == arguments else source
    return ToolCall(call_id, fields["name"], source)
