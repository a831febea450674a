"""The chat template and special tokens of the embedded policy.

It has ChatML turns, tool names in the system turn and calls as Hermes `<tool_call>` JSON. The
template is *prefix-preserving*: rendering more messages only appends text, so calls of one
conversation merge into one training row. `tokenizer.py` adds it to the tokenizer, `codec.py`
renders with the template of any tokenizer.
"""

from __future__ import annotations

PAD, TURN_START, TURN_END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
SPECIAL_TOKENS = (PAD, TURN_START, TURN_END, CALL_START, CALL_END)

CHAT_TEMPLATE = """\
{%- set given = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if tools or given -%}
{{- '<|im_start|>system\\n' + given -}}
{%- if tools -%}
{{- ('\\n' if given else '') + 'Tools:' -}}
{%- for tool in tools -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{{- ' ' + f.name + '(' + ((f.parameters.properties or {}).keys() | join(', ')) + ')' -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{%- if not (loop.first and m.role == 'system') -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' -%}
{%- generation -%}
{{- m.content or '' -}}
{%- for call in m.tool_calls or [] -%}
{%- set f = call.function if call.function is defined else call -%}
{{- '<tool_call>{"name": "' + f.name + '", "arguments": ' -}}
{{- f.arguments if f.arguments is string else f.arguments | tojson -}}
{{- '}</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endgeneration -%}
{%- else -%}
{{- (m.content or '') + '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}"""
