"""Convert GGUF files to Hugging Face folders, and policies to GGUF files.

The package `gguf` reads the format and the quantised blocks. This module maps the Llama layout:
names of tensors, the order of rows in query and key matrices (GGUF pairs neighbours for rotary
positions, Hugging Face pairs halves), sizes, and the byte-level tokenizer, whose rule for splitting
texts a GGUF file only names. Unknown tensors and rules are refused by name, because a model without
them would give wrong answers silently. `sources.py` caches the folders; `cli/export.py` writes
files of trained policies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutelage import files
from tutelage.errors import ModelError
from tutelage.policy.folder import save_tensors

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from tutelage.policy.model import Policy

ARCHITECTURE = "llama"
TYPES = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")
"""Supported tensor types."""

_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Special tokens, and their names in GGUF."""
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
"""Token types of GGUF."""


# ---------------------------------------------------------------- tokenizers


def _pre_tokenizers() -> dict[str, Any]:
    """Return the supported byte-level BPE pre-tokenizers by their GGUF names."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    llama3 = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    words = ByteLevel(add_prefix_space=False)
    plain = ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        "smollm": Sequence([Digits(individual_digits=True), words]),
        "gpt-2": words,
        "llama-bpe": Sequence([Split(Regex(llama3), "isolated"), plain]),
    }


def _read_tokenizer(meta: Mapping[str, Any], template: str | None) -> PreTrainedTokenizerBase:
    """Build a Hugging Face tokenizer from GGUF metadata."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    kind, rule = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    splits = _pre_tokenizers()
    if kind != "gpt2" or rule not in splits:
        raise ModelError(
            f"unsupported tokenizer {kind!r} with pre-tokenizer {rule!r}; supported: byte-level "
            f"('gpt2') with {', '.join(map(repr, splits))}"
        )
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    ids = {t: i for i, t in enumerate(tokens) if kinds[i] != _UNUSED}
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    tokenizer: Any = Tokenizer(models.BPE(ids, merges, ignore_merges=rule == "llama-bpe"))
    tokenizer.pre_tokenizer, tokenizer.decoder = splits[rule], decoders.ByteLevel()
    for token, number in sorted(ids.items(), key=lambda item: item[1]):
        added = AddedToken(token, normalized=False, special=kinds[number] == _CONTROL)
        if kinds[number] == _CONTROL:
            tokenizer.add_special_tokens([added])
        elif kinds[number] == _USER_DEFINED:
            tokenizer.add_tokens([added])
    named = {own: meta.get(f"tokenizer.ggml.{name}_token_id") for own, name in _ROLES.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **{f"{own}_token": tokens[number] for own, number in named.items() if number is not None},
    )
    fast.chat_template = template or meta.get("tokenizer.chat_template")
    return fast


def _write_tokenizer(writer: Any, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """Write a tokenizer as GGUF metadata, marking ids beyond its vocabulary as unused."""
    fast: Any = tokenizer
    backend = json.loads(fast.backend_tokenizer.to_str())

    def dump(rule: Any) -> str:  # without the option that does not change tokens
        return re.sub(r'"trim_offsets": \w+(, )?', "", json.dumps(rule))

    own = dump(backend["pre_tokenizer"])
    rules = [n for n, r in _pre_tokenizers().items() if dump(json.loads(r.__getstate__())) == own]
    if not rules or backend["model"]["type"] != "BPE" or backend["normalizer"] is not None:
        raise ModelError(
            "GGUF does not support this pre-tokenizer, so other programs would produce different "
            f"tokens; supported: {', '.join(map(repr, _pre_tokenizers()))}"
        )
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    kinds = dict.fromkeys(tokens, _NORMAL)
    for token in backend["added_tokens"]:
        kinds[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rules[0])
    writer.add_token_list([tokens.get(i, f"[PAD{i}]") for i in range(size)])
    writer.add_token_types([kinds.get(i, _UNUSED) for i in range(size)])
    merges = backend["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for own in _ROLES:
        number = getattr(tokenizer, f"{own}_token_id")
        if number is not None:
            getattr(writer, f"add_{own}_token_id")(number)
    writer.add_add_bos_token(False)  # the chat template writes it
    writer.add_chat_template(str(tokenizer.chat_template))


# ---------------------------------------------------------------- reading


def read_gguf(
    file: Path,
    folder: Path,
    *,
    template: str | None = None,
    on_progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Convert a GGUF file to a new Hugging Face folder, in float32.

    `template` replaces its chat template; `on_progress` receives the completed fraction, beginning
    with 0 once the file has been checked. Raises `ModelError` for unsupported files, before
    anything is written.
    """
    import gguf
    import torch

    try:
        reader = gguf.GGUFReader(str(file))
        meta = {name: field.contents() for name, field in reader.fields.items()}
    except OSError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error.strerror or error}") from error
    except (ValueError, IndexError, KeyError) as error:
        raise ModelError(
            f"{str(file)!r} is not a valid GGUF file: it is truncated, corrupt or newer than the "
            f"installed package gguf ({error}); copy or create the file again"
        ) from error
    try:
        config = _read_config(meta)
        tokenizer = _read_tokenizer(meta, template)
        names = {name: hf for hf, name in _tensor_names(config.num_hidden_layers).items()}
        for tensor in reader.tensors:
            if tensor.name not in names:
                raise ModelError(f"unexpected tensor {tensor.name!r}: not in a Llama model")
            if tensor.tensor_type.name not in TYPES:
                raise ModelError(
                    f"tensor {tensor.name!r} has type {tensor.tensor_type.name}; supported types: "
                    f"{', '.join(TYPES)}; convert the file to one of these"
                )
        present = {"output.weight", *(tensor.name for tensor in reader.tensors)}
        if missing := [name for name in names if name not in present]:
            raise ModelError(
                f"{len(missing)} tensors of the {config.num_hidden_layers} layers are missing, "
                f"such as {missing[0]!r}: the file is corrupt or contains only part of a model"
            )
    except KeyError as error:
        raise ModelError(f"incomplete model {str(file)!r}: missing metadata {error}") from error
    except ModelError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error}") from error
    files.check_disk_space(folder.parent, 4 * sum(int(t.n_elements) for t in reader.tensors))
    on_progress(0.0)
    state: dict[str, Tensor] = {}
    for done, tensor in enumerate(reader.tensors):
        with np.errstate(all="ignore"):  # values that are not finite are refused below
            values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if not np.isfinite(values).all():
            raise ModelError(
                f"{str(file)!r} is corrupt: tensor {tensor.name!r} has non-finite values; "
                "copy or create the file again"
            )
        values = values.reshape(tuple(int(n) for n in reversed(tensor.shape)))
        values = _permute_rotary(tensor.name, values, config, from_gguf=True)
        state[names[tensor.name]] = torch.from_numpy(values)
        on_progress((done + 1) / len(reader.tensors))
    config.vocab_size = len(state["model.embed_tokens.weight"])
    config.tie_word_embeddings = "lm_head.weight" not in state
    tokenizer.model_max_length = config.max_position_embeddings
    folder.mkdir(parents=True)
    save_tensors(state, folder / "model.safetensors")
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _read_config(meta: Mapping[str, Any]) -> Any:
    """Build a transformers config from GGUF metadata."""
    from transformers import LlamaConfig

    arch = meta["general.architecture"]
    if arch != ARCHITECTURE:
        raise ModelError(f"unsupported architecture {arch!r}; supported: {ARCHITECTURE!r}")
    own = {k.removeprefix(f"{arch}."): v for k, v in meta.items() if k.startswith(f"{arch}.")}
    for key in ("expert_count", "rope.scaling.type", "attention.sliding_window"):
        if own.get(key) not in (None, 0, "none"):
            raise ModelError(f"{arch}.{key}={own[key]!r} is not supported")
    for key in (key for key, value in own.items() if isinstance(value, list)):
        raise ModelError(f"{arch}.{key} differs between layers, which is not supported")
    heads = own["attention.head_count"]
    head_dim = own.get("attention.key_length", own["embedding_length"] // heads)
    if own.get("rope.dimension_count", head_dim) != head_dim:
        raise ModelError("partial rotary embeddings are not supported")
    theta = _shortest_decimal(own.get("rope.freq_base", 10000.0))
    ids = {ours: meta.get(f"tokenizer.ggml.{name}_token_id") for ours, name in _ROLES.items()}
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=own["embedding_length"],
        intermediate_size=own["feed_forward_length"],
        num_hidden_layers=own["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=own.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=own["context_length"],
        rms_norm_eps=_shortest_decimal(own["attention.layer_norm_rms_epsilon"]),
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        dtype="float32",
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=ids["pad"],
    )


def _shortest_decimal(value: float) -> float:
    """Return the shortest decimal of a float32 value, such as 1e-05 for 9.9999997e-06."""
    return float(str(np.float32(value)))


def _tensor_names(layers: int) -> dict[str, str]:
    """Map the GGUF names of a Llama model's tensors to their Hugging Face names."""
    import gguf

    from tutelage.policy.weights import OPTIONAL, PARTS

    name_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    inner = [name for field, parts in PARTS.items() if field not in OPTIONAL for name in parts]
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    names += [f"model.layers.{i}.{name}" for i in range(layers) for name in inner]
    return {name: str(name_map.get_name(name, (".weight",))) for name in names}


def _permute_rotary(name: str, values: np.ndarray, config: Any, *, from_gguf: bool) -> np.ndarray:
    """Convert the row order of query and key matrices between GGUF and Hugging Face.

    Other tensors are returned unchanged.
    """
    heads = {
        "attn_q.weight": config.num_attention_heads,
        "attn_k.weight": config.num_key_value_heads,
    }.get(name.partition("blk.")[2].partition(".")[2])
    if heads is None:
        return values
    half = len(values) // heads // 2
    split = (half, 2) if from_gguf else (2, half)
    permuted = values.reshape(heads, *split, -1).swapaxes(1, 2)
    return np.ascontiguousarray(permuted.reshape(values.shape))


# ---------------------------------------------------------------- writing


def write_gguf(policy: Policy, file: Path, name: str) -> None:
    """Write a policy of the Llama layout as GGUF, with matrices in F16 and norms in F32.

    Raises `ModelError` for a layout or a tokenizer that GGUF cannot represent.
    """
    import gguf

    config: Any = policy.config
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if config.model_type != ARCHITECTURE or rope.get("rope_type", "default") != "default":
        layout = f"{config.model_type!r} with rope type {rope.get('rope_type')!r}"
        raise ModelError(
            f"GGUF export supports {ARCHITECTURE!r} with default rotary embeddings, not "
            f"{layout}; convert the policy's folder with convert_hf_to_gguf.py of llama.cpp"
        )
    state = policy.network.state()
    names = _tensor_names(config.num_hidden_layers)
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if unknown := sorted(state.keys() - names.keys()):
        raise ModelError(f"the model has tensors that GGUF's Llama layout lacks: {unknown[:3]!r}")
    writer = gguf.GGUFWriter(str(file), ARCHITECTURE)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    _write_tokenizer(writer, policy.codec.tokenizer, len(state["model.embed_tokens.weight"]))
    for hf_name, tensor in state.items():
        values = _permute_rotary(names[hf_name], tensor.float().numpy(), config, from_gguf=False)
        writer.add_tensor(names[hf_name], values.astype(np.float16 if values.ndim > 1 else "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
