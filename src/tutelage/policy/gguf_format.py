"""GGUF, the files in which laptop users keep models: read into a Hugging Face folder, and written.

The package `gguf` knows the format and the quantised blocks. What is here is the Llama layout in
it: names of tensors, the order of rows in query and key matrices (GGUF pairs neighbours for rotary
positions, Hugging Face pairs halves), sizes, and the byte-level tokenizer, whose rule for splitting
texts a GGUF file only names. What is not understood is refused by its name, because a tensor or a
rule that is left out gives a model that answers, and answers wrongly. `sources.py` keeps the
folders; `cli/export.py` writes files of trained policies.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutelage import files
from tutelage.errors import MissingExtraError, ModelError
from tutelage.policy.folder import save_tensors

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from tutelage.policy.model import Policy

ARCHITECTURE = "llama"
TYPES = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0")
"""Formats of tensors that are read."""

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OWN_IDS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Tokens with a role, and what GGUF calls them."""
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
"""Kinds of tokens."""


def _package() -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise MissingExtraError(
            "GGUF files need the package gguf, which is not installed: "
            "pip install 'tutelage[train]'"
        ) from error


# ---------------------------------------------------------------- tokenizers


def _splits() -> dict[str, Any]:
    """How texts are split before byte-level merges, by the names that GGUF files give."""
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


def _read_tokenizer(facts: Mapping[str, Any], template: str | None) -> PreTrainedTokenizerBase:
    """The Hugging Face tokenizer that the metadata describe."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    kind, rule = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.pre")
    splits = _splits()
    if kind != "gpt2" or rule not in splits:
        raise ModelError(
            f"unsupported tokenizer {kind!r} with pre-tokenizer {rule!r}; supported: byte-level "
            f"('gpt2') with {', '.join(map(repr, splits))}"
        )
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    kinds: list[int] = facts.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    ids = {t: i for i, t in enumerate(tokens) if kinds[i] != _UNUSED}
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer: Any = Tokenizer(models.BPE(ids, merges, ignore_merges=rule == "llama-bpe"))
    tokenizer.pre_tokenizer, tokenizer.decoder = splits[rule], decoders.ByteLevel()
    for token, number in sorted(ids.items(), key=lambda item: item[1]):
        added = AddedToken(token, normalized=False, special=kinds[number] == _CONTROL)
        if kinds[number] == _CONTROL:
            tokenizer.add_special_tokens([added])
        elif kinds[number] == _USER_DEFINED:
            tokenizer.add_tokens([added])
    named = {own: facts.get(f"tokenizer.ggml.{name}_token_id") for own, name in _OWN_IDS.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **{f"{own}_token": tokens[number] for own, number in named.items() if number is not None},
    )
    fast.chat_template = template or facts.get("tokenizer.chat_template")
    return fast


def _rule_of(backend: Any) -> str:
    """The name of a tokenizer's splitting rule. Raises `ModelError` where GGUF has none."""
    for name, rule in _splits().items():
        same = _settings(backend["pre_tokenizer"]) == _settings(json.loads(rule.__getstate__()))
        if same and backend["model"]["type"] == "BPE" and backend["normalizer"] is None:
            return name
    raise ModelError(
        "GGUF has no name for its pre-tokenizer, so other programs would produce different "
        f"tokens; supported: {', '.join(map(repr, _splits()))}"
    )


def _settings(rule: Any) -> Any:
    """A splitting rule without what changes no token."""
    if isinstance(rule, dict):
        return {k: _settings(v) for k, v in rule.items() if k != "trim_offsets"}
    return [_settings(part) for part in rule] if isinstance(rule, list) else rule


def _write_tokenizer(writer: Any, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    """The tokenizer as metadata; ids of the model that it does not use are named as unused."""
    fast: Any = tokenizer
    backend = json.loads(fast.backend_tokenizer.to_str())
    rule = _rule_of(backend)
    known = {number: token for token, number in tokenizer.get_vocab().items()}
    kinds = dict.fromkeys(known, _NORMAL)
    for token in backend["added_tokens"]:
        kinds[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list([known.get(i, f"[PAD{i}]") for i in range(size)])
    writer.add_token_types([kinds.get(i, _UNUSED) for i in range(size)])
    merges = backend["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for own in _OWN_IDS:
        number = getattr(tokenizer, f"{own}_token_id")
        if number is not None:
            getattr(writer, f"add_{own}_token_id")(number)
    writer.add_add_bos_token(False)  # a chat template writes it where it belongs
    writer.add_chat_template(str(tokenizer.chat_template))


# ---------------------------------------------------------------- reading


def read_gguf(
    file: Path,
    folder: Path,
    *,
    template: str | None = None,
    watch: Callable[[float], None] = lambda done: None,
) -> None:
    """Write the model of a GGUF file as a new Hugging Face folder, in float32.

    `template` takes the place of its chat template; `watch` is told which part is done, 0 once the
    file is understood. Raises `ModelError` for what is not, before anything is written.
    """
    facts, tensors = _opened(file)
    try:
        config = _config(facts)
        tokenizer = _read_tokenizer(facts, template)
        names = {tensor.name: _hf_name(tensor.name, config.num_hidden_layers) for tensor in tensors}
        _check_whole(names, config.num_hidden_layers)
        for tensor in tensors:
            if tensor.tensor_type.name not in TYPES:
                raise _unread(tensor.name, tensor.tensor_type.name)
    except KeyError as error:
        raise ModelError(f"{str(file)!r} lacks the metadata {error}: incomplete model") from error
    except ModelError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error}") from error
    files.check_room(folder.parent, 4 * sum(int(tensor.n_elements) for tensor in tensors))
    watch(0.0)
    state: dict[str, Tensor] = {}
    for done, tensor in enumerate(tensors):
        values = state[names[tensor.name]] = _values(tensor, config)
        if not values.isfinite().all():
            raise ModelError(
                f"{str(file)!r} is corrupt: its tensor {tensor.name!r} has non-finite values; "
                "copy or create the file again"
            )
        watch((done + 1) / len(tensors))
    config.vocab_size = len(state["model.embed_tokens.weight"])
    config.tie_word_embeddings = "lm_head.weight" not in state
    tokenizer.model_max_length = config.max_position_embeddings
    folder.mkdir(parents=True)
    save_tensors(state, folder / "model.safetensors")
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _opened(file: Path) -> tuple[dict[str, Any], list[Any]]:
    """The metadata and the tensors of a file, which are read when they are used."""
    try:
        if not file.stat().st_size:
            raise EOFError("the file is empty")
        reader = _reader()(str(file))
        facts = {name: field.contents() for name, field in reader.fields.items()}
    except ModelError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error}") from error
    except (ValueError, IndexError, KeyError, EOFError) as error:
        # What the package says itself begins with a capital, what numpy and Python say does not.
        said = str(error.args[0]) if error.args else ""
        own = isinstance(error, EOFError) or said[:1].isupper()
        words = said if own else "its header cannot be read"
        raise ModelError(f"{str(file)!r} is not a valid GGUF file: {words}") from error
    except OSError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error.strerror or error}") from error
    return facts, list(reader.tensors)


def _reader() -> Any:
    """The package's reader, which tells what ends too early and which tensor is of a new type."""
    gguf = _package()

    def get(self: Any, offset: int, dtype: Any, count: int = 1, *more: Any, **named: Any) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise EOFError("the file is truncated")
        return gguf.GGUFReader._get(self, offset, dtype, count, *more, **named)

    def build(self: Any, start: int, fields: list[Any]) -> None:
        known = {int(kind) for kind in gguf.GGMLQuantizationType}
        for field in fields:
            if (kind := int(field.parts[4][0])) not in known:
                raise _unread(field.name, f"of unknown type {kind}")
        gguf.GGUFReader._build_tensors(self, start, fields)

    return type("Reader", (gguf.GGUFReader,), {"_get": get, "_build_tensors": build})


def _unread(tensor: str, kind: str) -> ModelError:
    words = f"its tensor {tensor!r} is {kind}; supported types: {', '.join(TYPES)}"
    return ModelError(f"{words}; convert the file to one of these")


def _config(facts: Mapping[str, Any]) -> Any:
    """The sizes, as transformers has them."""
    from transformers import LlamaConfig

    found = facts["general.architecture"]
    if found != ARCHITECTURE:
        raise ModelError(f"unsupported architecture {found!r}; supported: {ARCHITECTURE!r}")
    own = {k.removeprefix(f"{found}."): v for k, v in facts.items() if k.startswith(f"{found}.")}
    for key in ("expert_count", "rope.scaling.type", "attention.sliding_window"):
        if own.get(key) not in (None, 0, "none"):
            raise ModelError(f"{found}.{key}={own[key]!r} is not supported")
    for key in (key for key, value in own.items() if isinstance(value, list)):
        raise ModelError(f"{found}.{key} differs between layers, which is not supported")
    heads = own["attention.head_count"]
    head_dim = own.get("attention.key_length", own["embedding_length"] // heads)
    if own.get("rope.dimension_count", head_dim) != head_dim:
        raise ModelError("partial rotary embeddings are not supported")
    own_ids = {own: facts.get(f"tokenizer.ggml.{name}_token_id") for own, name in _OWN_IDS.items()}
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=own["embedding_length"],
        intermediate_size=own["feed_forward_length"],
        num_hidden_layers=own["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=own.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=own["context_length"],
        rms_norm_eps=_decimal(own["attention.layer_norm_rms_epsilon"]),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": _decimal(own.get("rope.freq_base", 10000.0)),
        },
        bos_token_id=own_ids["bos"],
        eos_token_id=own_ids["eos"],
        pad_token_id=own_ids["pad"],
        dtype="float32",
    )


def _decimal(value: float) -> float:
    """The number that was written when its float32 was rounded: 1e-05, not 9.9999997e-06."""
    return float(str(np.float32(value)))


def _hf_name(name: str, layers: int) -> str:
    """A tensor's Hugging Face name. Raises `ModelError` for one that no Llama model has."""
    parts = name.split(".")
    if len(parts) == 2 and parts[1] == "weight" and parts[0] in _OUTER:
        return f"{_OUTER[parts[0]]}.weight"
    block = parts[0] == "blk" and len(parts) == 4 and parts[1].isdecimal()
    if block and int(parts[1]) < layers and parts[2] in _INNER and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_INNER[parts[2]]}.weight"
    raise ModelError(f"unexpected tensor {name!r}, which a Llama model does not have")


def _check_whole(names: Mapping[str, str], layers: int) -> None:
    needed = ["token_embd.weight", "output_norm.weight"]
    needed += [f"blk.{i}.{name}.weight" for i in range(layers) for name in _INNER]
    if lacking := [name for name in needed if name not in names]:
        raise ModelError(
            f"{len(lacking)} tensors of its {layers} layers are missing, such as "
            f"{lacking[0]!r}: the file is corrupt or holds only a part of a model"
        )


def _values(tensor: Any, config: Any) -> Tensor:
    """A tensor in float32, with rows in Hugging Face's order."""
    import torch

    with np.errstate(all="ignore"):  # what is not finite is told
        values = np.array(_package().dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    values = values.reshape(tuple(int(n) for n in reversed(tensor.shape)))
    return torch.from_numpy(_turned(tensor.name, values, config, from_gguf=True))


def _turned(name: str, values: np.ndarray, config: Any, *, from_gguf: bool) -> np.ndarray:
    """Rows of query and key matrices in the other order; other tensors as they are."""
    heads = {
        "attn_q.weight": config.num_attention_heads,
        "attn_k.weight": config.num_key_value_heads,
    }.get(name.partition("blk.")[2].partition(".")[2])
    if heads is None:
        return values
    half = len(values) // heads // 2
    split = (half, 2) if from_gguf else (2, half)
    turned = values.reshape(heads, *split, -1).swapaxes(1, 2)
    return np.ascontiguousarray(turned.reshape(values.shape))


# ---------------------------------------------------------------- writing


def write_gguf(policy: Policy, file: Path, name: str) -> None:
    """Write a policy of the Llama layout: matrices in F16, norms in F32 as llama.cpp wants them.

    Raises `ModelError` for a layout or a tokenizer that the format cannot tell.
    """
    config: Any = policy.config
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if config.model_type != ARCHITECTURE or rope.get("rope_type", "default") != "default":
        found = f"{config.model_type!r} with rope type {rope.get('rope_type')!r}"
        raise ModelError(
            f"GGUF export supports {ARCHITECTURE!r} with default rotary embeddings, not "
            f"{found}; convert the policy's folder with convert_hf_to_gguf.py of llama.cpp"
        )
    gguf = _package()
    state = policy.network.state()
    given = {f"{v}.weight": f"{k}.weight" for k, v in _OUTER.items()}
    for i in range(config.num_hidden_layers):
        inner = {f"model.layers.{i}.{v}.weight": f"blk.{i}.{k}.weight" for k, v in _INNER.items()}
        given |= inner
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    strange = sorted(state.keys() - given.keys())
    if strange:
        raise ModelError(f"the model has tensors that GGUF's Llama layout lacks: {strange[:3]!r}")
    writer = gguf.GGUFWriter(str(file), ARCHITECTURE)
    _write_sizes(writer, config, name)
    _write_tokenizer(writer, policy.codec.tokenizer, len(state["model.embed_tokens.weight"]))
    for hf_name, tensor in state.items():
        values = _turned(given[hf_name], tensor.float().numpy(), config, from_gguf=False)
        writer.add_tensor(given[hf_name], values.astype(np.float16 if values.ndim > 1 else "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: Any, config: Any, name: str) -> None:
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(_package().LlamaFileType.MOSTLY_F16)
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
