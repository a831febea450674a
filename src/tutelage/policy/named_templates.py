"""Chat templates by name, such as `agent.template=qwen2.5`.

A checkpoint usually contains a template, which is used unless another one is named. The templates
here are our own Jinja code that renders the same text as the templates of these model families:
turns, tool lists and tool calls in the format that the models were trained on. A template whose
markers are not in the tokenizer's vocabulary is refused.

Formats: the model cards of Qwen2.5, Qwen2.5-VL and Qwen3 (Qwen team) and of Llama 3.2 (Meta).
`codec.py` renders with them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tutelage.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HERMES_TOOLS = (
    "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n"
    "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>"
)
_HERMES_FORM = (
    "\\n</tools>\\n\\nFor each function call, return a json object with function name and "
    "arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n"
    '{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>'
)

_CALLS = """\
{%- macro calls(message, lead) -%}
{%- for call in message.tool_calls or [] -%}
{%- set f = call.function if call.function is defined else call -%}
{{- ('\\n' if not loop.first or lead else '') + '<tool_call>\\n{"name": "' + f.name -}}
{{- '", "arguments": ' -}}
{{- f.arguments if f.arguments is string else f.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{%- endmacro -%}
"""

_TURNS = """\
{%- for m in messages -%}
{%- if loop.first and m.role == 'system' -%}
{%- elif m.role == 'assistant' -%}
"""

_RESULT = """\
{%- elif m.role == 'tool' -%}
{{- '' if loop.previtem is defined and loop.previtem.role == 'tool' else '<|im_start|>user' -}}
{{- '\\n<tool_response>\\n' + (m.content or '') + '\\n</tool_response>' -}}
{{- '' if loop.nextitem is defined and loop.nextitem.role == 'tool' else '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
"""

QWEN25 = """\
CALLS{%- set first = messages[0] -%}
{%- set given = first.content if first.role == 'system' else
    'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' -%}
{{- '<|im_start|>system\\n' + given -}}
{%- if tools -%}
{{- "\\n\\nTOOLS" -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- "FORM" -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
TURNS{{- '<|im_start|>assistant' -}}
{{- '\\n' + m.content if m.content else ('' if m.tool_calls else '\\n') -}}
{{- calls(m, true) + '<|im_end|>\\n' -}}
RESULT{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

QWEN3 = """\
CALLS{%- set first = messages[0] -%}
{%- if tools -%}
{{- '<|im_start|>system\\n' + (first.content + '\\n\\n' if first.role == 'system' else '') -}}
{{- "TOOLS" -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- "FORM<|im_end|>\\n" -}}
{%- elif first.role == 'system' -%}
{{- '<|im_start|>system\\n' + first.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- set at = namespace(question=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set at.question = loop.index0 -%}{%- endif -%}
{%- endfor -%}
TURNS{%- set said = m.content or '' -%}
{%- if loop.index0 < at.question and '</think>' in said -%}
{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\\n' + said + calls(m, said != '') + '<|im_end|>\\n' -}}
RESULT{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""

LLAMA32 = """\
{%- set first = messages[0] -%}
{%- set given = first.content | trim if first.role == 'system' else '' -%}
{%- macro turn(role) -%}{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' -}}
{%- endmacro -%}
{{- '<|begin_of_text|>' + turn('system') + ('Environment: ipython\\n' if tools else '') -}}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n' + given -}}
{{- '<|eot_id|>' -}}
{%- set at = namespace(told=not tools) -%}
{%- for m in messages -%}
{%- if loop.first and m.role == 'system' -%}
{%- elif m.role == 'user' and not at.told -%}
{%- set at.told = true -%}
{{- turn('user') + 'Given the following functions, please respond with a JSON for a function ' -}}
{{- 'call with its proper arguments that best answers the given prompt.\\n\\n' -}}
{{- 'Respond in the format ' -}}
{{- '{"name": function name, "parameters": dictionary of argument name and its value}.' -}}
{{- 'Do not use variables.\\n\\n' -}}
{%- for tool in tools -%}{{- (tool | tojson(indent=4)) + '\\n\\n' -}}{%- endfor -%}
{{- (m.content | trim) + '<|eot_id|>' -}}
{%- elif m.role == 'assistant' and m.tool_calls -%}
{%- for call in m.tool_calls -%}
{%- set f = call.function if call.function is defined else call -%}
{{- turn('assistant') + '{"name": "' + f.name + '", "parameters": ' -}}
{{- (f.arguments if f.arguments is string else f.arguments | tojson) + '}<|eot_id|>' -}}
{%- endfor -%}
{%- else -%}
{{- turn('ipython' if m.role == 'tool' else m.role) + ((m.content or '') | trim) -}}
{{- '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- turn('assistant') -}}{%- endif -%}
"""


_SMOLLM2 = """\
CALLS{%- set first = messages[0] -%}
{%- set given = first.content if first.role == 'system' else
    'You are a helpful AI assistant named SmolLM, trained by Hugging Face' -%}
{{- '<|im_start|>system\\n' + given -}}
{%- if tools -%}
{{- '\\n\\nTools:' -}}
{%- for tool in tools -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{%- set shape = f.parameters or {} -%}
{{- '\\n' + f.name + '(' -}}
{%- for name, is in (shape.properties or {}).items() -%}
{{- ('' if loop.first else ', ') + name + ('' if name in (shape.required or []) else '?') -}}
{{- ': ' + (is.type if is.keys() | reject('in', ['type', 'description', 'title']) | list == []
            and is.type is string else (is | tojson)) -}}
{%- endfor -%}
{{- ')' + (': ' + f.description if f.description else '') -}}
{%- for name, is in (shape.properties or {}).items() if is.description -%}
{{- ' ' + name + ': ' + is.description -}}
{%- endfor -%}
{%- endfor -%}
{{- '\\nCall a tool with <tool_call>\\n{"name": NAME, "arguments": {...}}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for m in messages -%}
{%- if not (loop.first and m.role == 'system') -%}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') -}}
{{- calls(m, m.content) if m.role == 'assistant' else '' -}}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""Calls have Qwen's format; tools are signatures, with a third of the tokens of their schemas."""


_PARTS = {
    "CALLS": _CALLS,
    "TURNS": _TURNS,
    "TOOLS": _HERMES_TOOLS,
    "FORM": _HERMES_FORM,
    "RESULT": _RESULT,
}


def _fill_template(text: str) -> str:
    return re.sub("CALLS|TURNS|TOOLS|FORM|RESULT", lambda part: _PARTS[part[0]], text)


TEMPLATES = {
    "qwen2.5": _fill_template(QWEN25),
    # The same text as for the text model, except for the default system message; messages contain
    # no images.
    "qwen2.5-vl": _fill_template(QWEN25).replace("You are Qwen, created by Alibaba Cloud. ", ""),
    "qwen3": _fill_template(QWEN3),
    "smollm2": _fill_template(_SMOLLM2),
    "llama-3.2": LLAMA32,
}
"""Chat templates by their names in `agent.template`."""

_LLAMA_MARKERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def template_advice(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return advice on how to add a chat template with tools to a tokenizer."""
    named = [f"agent.template={n}" for n in TEMPLATES if not _missing_tokens(tokenizer, n)]
    advice = "add a `chat_template.jinja` that supports tools to its tokenizer files"
    return f"{advice}, or pass one to `train`: {' or '.join(named)}" if named else advice


def _missing_tokens(tokenizer: PreTrainedTokenizerBase, name: str) -> list[str]:
    markers = _LLAMA_MARKERS if name == "llama-3.2" else ("<|im_start|>", "<|im_end|>")
    return [marker for marker in markers if marker not in tokenizer.get_vocab()]


def set_template(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Set a tokenizer's chat template by name. Raises `ModelError` if the vocabulary lacks a
    token."""
    if missing := _missing_tokens(tokenizer, name):
        raise ModelError(
            f"agent.template={name!r} needs the token {missing[0]!r}, which the tokenizer does not "
            "have; leave agent.template out to use the model's own template"
        )
    tokenizer.chat_template = TEMPLATES[name]
