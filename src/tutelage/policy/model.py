"""The policy: a model being trained, its tokenizer, and its version.

A `Policy` owns the master weights in float32 and the Hugging Face config, scores training rows and
saves a folder that `AutoModelForCausalLM.from_pretrained` and vLLM can load. Llama, Qwen2 and Qwen3
layouts run on the fused decoder (`decoder.py`); other architectures run their own Hugging Face
forward pass (`hf_model.py`). `build_policy` creates the embedded policy from scratch; `load_policy`
loads a folder, a hub name, or a name that `sources.py` defines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tutelage.errors import ModelError
from tutelage.policy.codec import Codec
from tutelage.policy.constrained import AllowedTokens
from tutelage.policy.folder import save_tensors, write_folder
from tutelage.policy.hf_model import HFNetwork, Network
from tutelage.policy.kernels import round_up
from tutelage.policy.machine import detect_machine
from tutelage.policy.named_templates import set_template
from tutelage.policy.network import FusedNetwork, Scoring, TokenScores
from tutelage.policy.packing import plan_for_two_threads, plan_micro_batches
from tutelage.policy.row import Row
from tutelage.policy.sources import artefact, folder_error, local_folder
from tutelage.policy.template import CHAT_TEMPLATE
from tutelage.policy.weights import DecoderShape, DecoderWeights
from tutelage.types import Message, ToolSpec

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SIZES = {"xs": (128, 3, 4, 2, 384), "s": (192, 4, 6, 2, 512), "test": (32, 2, 4, 2, 64)}
"""Sizes of embedded policies: hidden, layers, heads, kv heads, ffn. xs has 0.64 M parameters, s
1.65 M; test is for tests (see `tutelage.testing`) and too small to learn."""

LAYOUTS = {"qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "llama": "LlamaConfig"}
"""Layouts of embedded policies and of the fused decoder, with their `transformers` configs."""

_MIN_CONTEXT, _CONTEXT_STEP = 1024, 64
"""Minimum context, and the step to which a context limited by memory is rounded down."""


class Policy:
    """A trainable model with its network, codec, Hugging Face config and version counter."""

    def __init__(
        self, network: Network, config: PretrainedConfig, codec: Codec, *, version: int = 0
    ) -> None:
        self.network = network
        self.config = config
        self.codec = codec
        self.version = version

    @property
    def device(self) -> torch.device:
        """Return the device of the master weights."""
        return self.network.device

    @property
    def max_positions(self) -> int:
        """Return the maximum sequence length of the model."""
        return max_positions(self.config)

    def context_length(self, sequences: int, dtype: torch.dtype) -> int:
        """Return the context length in tokens that fits in memory for this many parallel sequences.

        It is the model's maximum, or what fits into half of the memory as keys and values, but at
        least 1024 tokens."""
        if self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory
        else:
            memory = detect_machine().memory
        fitting = memory // (2 * self.token_bytes(dtype) * sequences) // _CONTEXT_STEP
        return min(self.max_positions, max(_MIN_CONTEXT, fitting * _CONTEXT_STEP))

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Return the KV cache size of one token in bytes."""
        config: Any = self.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * config.num_hidden_layers * heads * size * dtype.itemsize

    def to(self, device: torch.device) -> Policy:
        """Move the policy to another device. The original must not be used afterwards."""
        return Policy(self.network.to(device), self.config, self.codec, version=self.version)

    def copy(self, tensors: dict[str, Tensor] | None = None) -> Policy:
        """Return an independent copy of the policy, with the weights `tensors` if given."""
        policy = Policy(self.network.copy(), self.config, self.codec, version=self.version)
        if tensors is not None:
            policy.load_tensors(tensors)
        return policy

    def snapshot(self) -> dict[str, Tensor]:
        """Return copies of the trainable tensors, for `load_tensors`."""
        return {name: tensor.detach().clone() for name, tensor in self.named_tensors()}

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """Return the trainable tensors by name, in a fixed order."""
        return list(self.network.named_tensors())

    def parameters(self) -> list[Tensor]:
        """Return the trainable tensors in the order of `named_tensors`."""
        return [t for _, t in self.network.named_tensors()]

    def count(self) -> int:
        """Return the number of parameters, including frozen ones."""
        return self.network.count()

    def score(
        self,
        rows: Sequence[Row],
        *,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
        entropy_gradient: bool = False,
        reference_KV: Tensor | None = None,
    ) -> TokenScores:
        """Compute the log-probabilities of the trained tokens of `rows`, with gradients.

        With `reference_KV`, a reference's `network.distribution` of the same rows, compute the
        exact KL from it too. The log-probability of a token under a grammar is that among the
        allowed tokens; the exact KL is always over the whole vocabulary.
        """
        allowed = AllowedTokens.replay(self.codec, rows, self.device)
        how = Scoring(temperature, dtype, entropy_gradient, reference_KV, allowed)
        return self.network.score(rows, how)

    def micro_batches(self, rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
        """Split rows into micro-batches of about `max_tokens` tokens, as lists of row indices."""
        plan = plan_for_two_threads if self.network.large else plan_micro_batches
        return plan(rows, max_tokens)

    @torch.no_grad()
    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Overwrite the weights with tensors by name. Raises `ModelError` if one is missing."""
        for name, tensor in self.named_tensors():
            if name not in tensors:
                raise ModelError(
                    f"missing tensor {name!r} in the weights to load; they belong to another "
                    "model, or to other adapters (model.lora)"
                )
            tensor.copy_(tensors[name])

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the current weights by their Hugging Face names, with adapters merged.

        They are not copied, so they are valid until the next update."""
        return self.network.hf_tensors()

    def save(self, folder: Path | str, *, replace: bool = False) -> None:
        """Save the policy atomically as a Hugging Face folder.

        With `replace`, an existing policy is replaced and files of other names stay. Raises
        `ModelError` if the folder is not empty and `replace` is False, and `StoreError` if writing
        fails; then the folder keeps its old content.
        """
        write_folder(Path(folder), self._write, replace=replace)

    def _write(self, folder: Path) -> None:
        save_tensors(self.network.state(), folder / "model.safetensors")
        self.config.save_pretrained(folder)
        self.codec.tokenizer.save_pretrained(folder)
        generation = {
            "eos_token_id": sorted(self.codec.eos_ids),
            "pad_token_id": self.codec.pad_id,
            "do_sample": True,
        }
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def build_policy(
    corpus: Iterable[str],
    *,
    size: str = "xs",
    layout: str = "qwen3",
    seed: int = 0,
    vocab_size: int = 512,
    max_positions: int = 512,
    device: torch.device | None = None,
) -> Policy:
    """Create an embedded policy: train a tokenizer on `corpus`, initialise weights from `seed`."""
    import transformers

    from tutelage.policy.tokenizer import train_tokenizer

    if layout not in LAYOUTS:
        raise ModelError(f"unknown layout {layout!r}; choose one of {', '.join(LAYOUTS)}")
    tokenizer = train_tokenizer(corpus, vocab_size=vocab_size, max_length=max_positions)
    hidden, layers, heads, kv_heads, ffn = SIZES[size]
    config: Any = getattr(transformers, LAYOUTS[layout])(
        vocab_size=round_up(len(tokenizer)),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=ffn,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    config.architectures = [type(model).__name__]  # without it vLLM serves a pooling model
    return Policy(_make_network(model).to(device or torch.device("cpu")), config, Codec(tokenizer))


def load_codec(
    path: str, *, template: str | None = None, tools: Sequence[ToolSpec] = ()
) -> tuple[PretrainedConfig, Codec]:
    """Load the config and codec of a Hugging Face model, without its weights.

    Raises `ModelError` if the folder is missing or broken, if its layout is not supported, or if it
    has no chat template or the template ignores `tools`.
    """
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    path = local_folder(path)
    if Path(path).exists() and not (Path(path) / "config.json").is_file():
        raise ModelError(f"{path!r} is not a Hugging Face model folder: it has no config.json")
    if message := folder_error(path):
        raise ModelError(message)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        HFNetwork.check_layout(path, config)
        # A tokenizer saved only as `tokenizer.json` is loaded by its own class: for some model
        # types, such as `qwen2`, AutoTokenizer would split texts by other rules.
        declared = get_tokenizer_config(path).get("tokenizer_class")
        own = declared in ("TokenizersBackend", "PreTrainedTokenizerFast")
        kind: Any = PreTrainedTokenizerFast if own else AutoTokenizer
        tokenizer = kind.from_pretrained(path, trust_remote_code=False)
    except ModelError:
        raise
    except Exception as error:  # transformers raises many types of exception for a broken file
        message = str(error) if isinstance(error, (OSError, ValueError)) else repr(error)
        raise ModelError(f"cannot load {path!r}: {message}") from error
    for option in ("trust_remote_code", "is_local", "local_files_only"):
        # It would be saved with the tokenizer, so a resumed run would write another file.
        tokenizer.init_kwargs.pop(option, None)
    if Path(path) in (artefact("math"), artefact("prompts")):
        tokenizer.chat_template = CHAT_TEMPLATE
    if template is not None:
        set_template(tokenizer, template)
    codec = Codec(tokenizer, source=repr(path))
    try:
        codec.render_text([Message("user", "?")])
    except ModelError as error:
        raise ModelError(f"cannot use {path!r}: {error}; fix its chat template") from error
    if tools:
        codec.render_text([Message("user", "?")], tools)
    return config, codec


def max_positions(config: PretrainedConfig) -> int:
    """Return the maximum sequence length of a model with this config."""
    return int(getattr(config, "max_position_embeddings", 0) or 1 << 20)


def load_policy(
    path: str,
    *,
    device: torch.device | None = None,
    template: str | None = None,
    tools: Sequence[ToolSpec] = (),
) -> Policy:
    """Load a Hugging Face causal language model with a chat template.

    The template is the model's own or the one named by `template`, and is checked before any weight
    is read. Raises `ModelError` if the folder is missing or broken, or if there is no chat template
    or it ignores `tools`.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    path = local_folder(path)
    config, codec = load_codec(path, template=template, tools=tools)
    show_bar, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # the job has its own display, and errors are raised
    logging.set_verbosity_error()
    try:
        model, info = cast("Any", AutoModelForCausalLM).from_pretrained(
            path, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    except Exception as error:  # readers raise many types of exception for a damaged file
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ModelError(f"cannot load the weights of {path!r}: {reason}") from error
    finally:
        logging.set_verbosity(level)
        if show_bar:
            logging.enable_progress_bar()
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])[:3]
        raise ModelError(f"missing weights in {path!r}: {missing!r}; copy the folder again")
    config.architectures = config.architectures or [type(model).__name__]
    network = _make_network(model)
    del model
    try:
        return Policy(network.to(device or torch.device("cpu")), config, codec)
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". GPU")[0]
        raise ModelError(
            f"the weights of {path!r}, in float32, do not fit on {device} ({reason}); "
            "set CUDA_VISIBLE_DEVICES= to keep the model on the CPU"
        ) from error


def _make_network(model: Any) -> Network:
    """Convert a model to the fused decoder if their outputs agree, or wrap it otherwise. The
    model's tensors are replaced by the fused ones, so that memory holds one copy."""
    cpu = torch.device("cpu")
    # A short text does not show attention windows, or positions that change with the length.
    config: Any = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    supported = (
        config.model_type in LAYOUTS
        and config.hidden_act == "silu"
        and set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
        and rope.get("rope_type", "default") in ("default", "linear", "llama3", "yarn")
    )
    if not supported:
        return HFNetwork(model, cpu)
    state, rotary = model.eval().state_dict(), model.model.rotary_emb
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(()).expand(parameter.shape)
    shape, scale = DecoderShape.from_config(config), float(rotary.attention_scaling)
    try:
        weights = DecoderWeights.from_hf(state, shape, rotary.inv_freq, scale)
        fused = FusedNetwork(weights)
        state = dict(weights.hf_tensors())
    except ModelError:
        fused = None
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    return HFNetwork(model, cpu) if fused is None or not _networks_agree(model, fused) else fused


@torch.no_grad()
def _networks_agree(model: Any, fused: FusedNetwork, tolerance: float = 1e-3) -> bool:
    """Return True if two forward passes give the same log-probabilities on a few tokens."""
    vocab = fused.weights.shape.vocab
    ids = tuple((7 * i + 3) % vocab for i in range(12))
    row = Row(ids, (0, *([1] * (len(ids) - 1))))
    ours = fused.score([row], Scoring()).logp_K.cpu()
    theirs = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    theirs = theirs[:-1].gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)
    return bool((ours - theirs).abs().max() < tolerance)
