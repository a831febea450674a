"""GGUF files: what is written is read back, by `gguf` and by transformers; what is not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from policy.gguf_samples import TEXTS, gguf_file, tiny_llama
from tests.marks import first
from transformers import AutoModelForCausalLM, AutoTokenizer

from tutelage.errors import ModelError
from tutelage.policy.gguf_format import TYPES, read_gguf, write_gguf
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.network import FusedNetwork
from tutelage.testing import tiny_policy
from tutelage.types import Message

IDS = torch.tensor([[7 * i % 300 for i in range(24)]])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, Path]:
    """A policy and its file."""
    policy, file = tiny_llama(), tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(policy, file, "tiny")
    return policy, file


def loaded(file: Path) -> Any:
    """The model as transformers reads the file."""
    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()


def rounded(policy: Policy) -> dict[str, torch.Tensor]:
    """The weights as the file has them: matrices in F16, norms unchanged."""
    state = policy.network.state()
    return {k: v.half().float() if v.dim() > 1 else v for k, v in state.items()}


def test_transformers_computes_the_same_from_the_file(exported: tuple[Policy, Path]) -> None:
    policy, file = exported
    ours = policy.network.model
    model = type(ours)(ours.config).eval()
    model.load_state_dict(rounded(policy), strict=False)
    with torch.no_grad():
        assert torch.allclose(loaded(file)(IDS).logits, model(IDS).logits, atol=1e-4)


def test_what_is_written_is_read_back(exported: tuple[Policy, Path], tmp_path: Path) -> None:
    policy, file = exported
    read_gguf(file, tmp_path / "folder")
    back = load_policy(str(tmp_path / "folder"))
    assert isinstance(back.network, FusedNetwork)
    state, before = back.network.state(), rounded(policy)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert back.codec.eos_ids == policy.codec.eos_ids
    assert back.config.rope_parameters["rope_theta"] == 10000.0
    told = [Message("user", "6 * 7?"), Message("assistant", "42"), Message("user", "Sure?")]
    assert back.codec.render(told) == policy.codec.render(told)


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_head_is_there_where_the_model_has_its_own(tied: bool, tmp_path: Path) -> None:
    write_gguf(tiny_llama(tie_word_embeddings=tied), tmp_path / "m.gguf", "m")
    read_gguf(tmp_path / "m.gguf", tmp_path / "m")
    policy = load_policy(str(tmp_path / "m"))
    assert policy.config.tie_word_embeddings is tied
    assert ("lm_head.weight" in policy.network.state()) is not tied


def test_tokens_are_those_of_the_tokenizer_and_texts_come_back(
    exported: tuple[Policy, Path], tmp_path: Path
) -> None:
    policy, file = exported
    read_gguf(file, tmp_path / "folder")
    ours, own = load_policy(str(tmp_path / "folder")).codec, policy.codec
    assert ours.tokenizer.get_vocab() == own.tokenizer.get_vocab()
    for text in TEXTS:
        assert ours.encode(text) == own.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert [ours.decode([i]) for i in ours.encode("2024")] == ["2", "0", "2", "4"]
    # transformers does not know SmolLM's rule, which differs where blanks stand before a digit.
    peer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = "What is the sum? <|im_end|>\nIt is <think>naïve 中文"
    assert ours.encode(text) == peer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", first(3, TYPES))
def test_every_format_is_read_as_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf", kind)
    parts: list[float] = []
    read_gguf(file, tmp_path / "folder", on_progress=parts.append)
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.allclose(ours(IDS).logits, loaded(file)(IDS).logits, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "Q5_0"}, "'token_embd.weight' has type Q5_0; supported types: F32, F16, Q4_0"),
        ({"facts": {"architecture": "gemma"}}, "unsupported architecture 'gemma'"),
        ({"facts": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type='yarn'"),
        ({"facts": {"llama.block_count": 3}}, "9 tensors of the 3 layers are missing"),
        ({"facts": {"tokenizer.ggml.pre": "default"}}, "pre-tokenizer 'default'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = gguf_file(tmp_path / "m.gguf", **changes)
    with pytest.raises(ModelError, match=r"m\.gguf") as refused:
        read_gguf(file, tmp_path / "folder")
    assert said in str(refused.value)
    assert not (tmp_path / "folder").exists()


def test_a_file_that_is_none_or_a_part_of_one_is_refused(
    exported: tuple[Policy, Path], tmp_path: Path
) -> None:
    whole = exported[1].read_bytes()
    said = "it is truncated, corrupt or newer than the installed package gguf"
    for content, why in (
        (b"PK\x03\x04 a wheel", "GGUF magic invalid"),
        (whole[: len(whole) // 2], ""),
    ):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(
            ModelError, match=rf"not a valid GGUF file: {said} \(.*{why}.*; copy or"
        ):
            read_gguf(tmp_path / "m.gguf", tmp_path / "folder")
    with pytest.raises(ModelError, match="cannot read"):
        read_gguf(tmp_path / "none.gguf", tmp_path / "folder")


def test_a_policy_that_the_format_cannot_tell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"supports 'llama' .* not 'qwen3'"):
        write_gguf(tiny_policy("qwen3"), tmp_path / "m.gguf", "m")
    with pytest.raises(ModelError, match="GGUF does not support this pre-tokenizer"):
        write_gguf(tiny_policy("llama"), tmp_path / "m.gguf", "m")
