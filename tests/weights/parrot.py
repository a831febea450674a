"""A real model that uses tools after seconds of training, in the folder layout of any family.

It is made with `transformers` alone (config, weights, tokenizer, chat template), taught by heart to
answer one question, part of the time by calling the calculator and else by guessing. That gives
tests what an untrained model cannot: tool calls, rewards that differ within a
group, and a skill that reinforcement learning can only find by sampling.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from policy.chat_templates import LLAMA32, LLAMA_TOKENS, QWEN3, QWEN25

from tutelage.policy.codec import Codec
from tutelage.policy.template import CHAT_TEMPLATE
from tutelage.policy.tokenizer import train_tokenizer
from tutelage.tools import Tool
from tutelage.tools.builtin import calculator
from tutelage.types import Message, ToolCall

ANSWER = 42
GUESSES = (40, 41, 43)

FAMILIES = {
    "embedded": ("Qwen2Config", CHAT_TEMPLATE),
    "qwen2": ("Qwen2Config", QWEN25),
    "qwen3": ("Qwen3Config", QWEN3),
    "llama": ("LlamaConfig", LLAMA32),
}


def rows(start: int = 0, count: int = 8) -> list[dict[str, Any]]:
    """Tasks as rows of a dataset file."""
    return [
        {"id": f"q{i}", "question": f"{i}: what is 6 * 7?", "answer": ANSWER}
        for i in range(start, start + count)
    ]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A JSONL file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def called(tool: Tool) -> Message:
    """The turn that calls the tool."""
    return Message("assistant", None, (ToolCall("c", tool.name, '{"expression": "6 * 7"}'),))


def make_parrot(
    folder: Path,
    family: str = "embedded",
    *,
    tool: Tool = calculator,
    guesses: float = 0.5,
    steps: int = 150,
    seed: int = 0,
) -> Path:
    """Write the model to `folder` as `save_pretrained` does; equal arguments, equal weights."""
    import transformers

    config_name, template = FAMILIES[family]
    tokenizer = _tokenizer(family, template, tool)
    config = getattr(transformers, config_name)(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12 if family != "qwen3" else 16,
        intermediate_size=96,
        max_position_embeddings=1024,
        tie_word_embeddings=family != "qwen3",
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _teach(model, Codec(tokenizer), tool, guesses, steps, seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(family: str, template: str, tool: Tool) -> Any:
    corpus = [json.dumps(tool.spec.to_dict()), "system user assistant tool Tools: name arguments"]
    corpus += [f"{row['question']} {row['answer']}" for row in rows()]
    tokenizer = train_tokenizer(corpus, vocab_size=448, max_length=1024)
    if family == "llama":
        tokenizer.add_special_tokens({"additional_special_tokens": list(LLAMA_TOKENS)})
        tokenizer.eos_token = "<|eot_id|>"
    tokenizer.chat_template = template
    return tokenizer


def _teach(model: Any, codec: Codec, tool: Tool, guesses: float, steps: int, seed: int) -> None:
    """Plain supervised training with the model's own forward pass."""
    batches = _batches(codec, tool, guesses, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    model.train()
    for _ in range(steps):
        ids, labels, attention = next(batches)
        loss = model(input_ids=ids, attention_mask=attention, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def lesson(
    codec: Codec, tool: Tool, question: str, guess: int | None
) -> tuple[list[int], list[int]]:
    """Ids and mask of one conversation, observed as an engine would show it."""
    asked = Message("user", question)
    reply = called(tool) if guess is None else Message("assistant", str(guess))
    ids, mask = (list(part) for part in codec.encode_demonstration([asked, reply], [tool.spec]))
    if guess is None:
        result = Message("tool", str(ANSWER), tool_call_id="c", name=tool.name)
        observed = codec.encode_observation(reply, [result])
        assert observed is not None
        answer = [*codec.encode(str(ANSWER)), int(codec.tokenizer.eos_token_id)]
        ids += [*observed, *answer]
        mask += [0] * len(observed) + [1] * len(answer)
    return ids, mask


def _batches(
    codec: Codec, tool: Tool, guesses: float, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Eight examples at a time, padded on the right."""
    rng = random.Random(seed)
    while True:
        pairs = [
            lesson(
                codec,
                tool,
                rows(rng.randrange(32), 1)[0]["question"],
                rng.choice(GUESSES) if rng.random() < guesses else None,
            )
            for _ in range(8)
        ]
        width = max(len(ids) for ids, _ in pairs)
        ids = torch.full((len(pairs), width), codec.pad_id)
        labels = torch.full((len(pairs), width), -100)
        attention = torch.zeros(len(pairs), width, dtype=torch.long)
        for i, (tokens, mask) in enumerate(pairs):
            row, trained = torch.tensor(tokens), torch.tensor(mask, dtype=torch.bool)
            ids[i, : len(tokens)] = row
            labels[i, : len(tokens)] = torch.where(trained, row, -100)
            attention[i, : len(tokens)] = 1
        yield ids, labels, attention
