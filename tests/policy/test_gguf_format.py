"""GGUF files: what is written is read back, by `gguf` and by transformers; what is not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from policy.gguf_samples import TEXTS, gguf_file, tiny_llama
from tests.marks import first
from transformers import AutoModelForCausalLM, AutoTokenizer

from tutelage.errors import ConfigError, ModelError
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


def test_what_is_written_are_the_rounded_weights(exported: tuple[Policy, Path]) -> None:
    policy, file = exported
    state = rounded(policy)
    tensors = {t.name: t for t in gguf.GGUFReader(str(file)).tensors}
    assert len(tensors) == len(state)
    plain = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
        "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
        "output_norm.weight": "model.norm.weight",
    }
    for name, own in plain.items():
        assert np.array_equal(np.array(tensors[name].data, np.float32), state[own].numpy())
    # Rows of a query head are turned: its first two are the first ones of both halves.
    query, own = (
        tensors["blk.0.attn_q.weight"].data,
        state["model.layers.0.self_attn.q_proj.weight"],
    )
    assert np.array_equal(query[1].astype(np.float32), own[8].numpy())
    assert np.array_equal(query[2].astype(np.float32), own[1].numpy())


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
    read_gguf(file, tmp_path / "folder", watch=parts.append)
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32).eval()
    with torch.no_grad():
        assert torch.allclose(ours(IDS).logits, loaded(file)(IDS).logits, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"kind": "Q5_0"},
            "'token_embd.weight' is Q5_0; supported types: F32, F16, Q4_0, Q4_1, Q8_0",
        ),
        ({"facts": {"architecture": "gemma"}}, "unsupported architecture 'gemma'"),
        ({"facts": {"llama.expert_count": 8}}, "llama.expert_count=8 is not supported"),
        ({"facts": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type='yarn'"),
        ({"facts": {"llama.rope.dimension_count": 4}}, "partial rotary embeddings"),
        ({"facts": {"llama.block_count": 1}}, "unexpected tensor 'blk.1."),
        ({"facts": {"llama.block_count": 3}}, "9 tensors of its 3 layers are missing"),
        ({"facts": {"llama.embedding_length": None}}, "lacks the metadata 'embedding_length'"),
        ({"facts": {"tokenizer.ggml.model": "llama"}}, "unsupported tokenizer 'llama'"),
        ({"facts": {"tokenizer.ggml.pre": "default"}}, "pre-tokenizer 'default'"),
        ({"extra": "rope_freqs.weight"}, "unexpected tensor 'rope_freqs.weight'"),
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


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf")
    content = bytearray(file.read_bytes())
    matrix = next(t for t in gguf.GGUFReader(str(file)).tensors if t.data.ndim == 2)
    content[matrix.data_offset : matrix.data_offset + 2] = b"\x00\x7c"  # infinite in F16
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.gguf' is corrupt: its tensor .* non-finite values"):
        read_gguf(file, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_file_that_is_none_or_a_part_of_one_is_refused(
    exported: tuple[Policy, Path], tmp_path: Path
) -> None:
    whole = exported[1].read_bytes()
    said = "it is truncated, corrupt or newer than the package gguf here"
    for content, why in (
        (b"", "empty file"),
        (b"PK\x03\x04 a wheel", "GGUF magic invalid"),
        (whole[:200], ""),
        (whole[:199], ""),
        (whole[: len(whole) // 2], ""),
        (whole[:4] + b"\x63" + whole[5:], "version 99"),
        (whole.replace(b"general.name", b"\xff" * 12), "'utf-8' codec"),
    ):
        (tmp_path / "m.gguf").write_bytes(content)
        with pytest.raises(
            ModelError, match=rf"not a valid GGUF file: {said} \(.*{why}.*; copy or"
        ):
            read_gguf(tmp_path / "m.gguf", tmp_path / "folder")
    with pytest.raises(ModelError, match="cannot read"):
        read_gguf(tmp_path / "none.gguf", tmp_path / "folder")


def test_a_tensor_of_a_type_that_nobody_knows_yet_is_refused(
    exported: tuple[Policy, Path], tmp_path: Path
) -> None:
    content = bytearray(exported[1].read_bytes())
    tensor = gguf.GGUFReader(str(exported[1])).tensors[3]
    place = tensor.field.offset + sum(int(part.nbytes) for part in tensor.field.parts[:4])
    content[place : place + 4] = (999).to_bytes(4, "little")
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"gguf here .*\b999\b.* is not a valid"):
        read_gguf(tmp_path / "m.gguf", tmp_path / "folder")


def test_a_disk_without_room_is_said_before_anything_is_written(
    exported: tuple[Policy, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ConfigError, match=r"needs 0\.00 GB in .* free some space"):
        read_gguf(exported[1], tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_policy_that_the_format_cannot_tell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"supports 'llama' .* not 'qwen3'"):
        write_gguf(tiny_policy("qwen3"), tmp_path / "m.gguf", "m")
    with pytest.raises(ModelError, match="GGUF has no name for its pre-tokenizer"):
        write_gguf(tiny_policy("llama"), tmp_path / "m.gguf", "m")
    with pytest.raises(ModelError, match=r"lacks: \['model\.layers\.0\.mlp\.down_proj\.bias'"):
        write_gguf(tiny_llama(mlp_bias=True), tmp_path / "m.gguf", "m")
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(ModelError, match="rope type 'linear'"):
        write_gguf(tiny_llama(rope_parameters=scaled), tmp_path / "m.gguf", "m")
