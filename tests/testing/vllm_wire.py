"""What vLLM's routes say, as `vllm_server.py` says it: replies, refusals, files of weights.

Pure functions of requests and of drawn tokens. Written after the code of vLLM 0.32 and compared
with it field by field (`make test-scale`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.types import JSON

if TYPE_CHECKING:
    from torch import Tensor

    from tutelage.policy.codec import Codec

FLOOR = -9999.0
"""What vLLM says for a log-probability that is no number, and for one below it."""

Reply = tuple[int, Any]
"""A status, and an object or a text."""
Candidates = tuple[tuple[int, float], ...]
"""Tokens with their log-probabilities, the most probable first."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token, its log-probability, what it could have been, and the weights that drew it."""

    token: int
    logprob: float
    candidates: Candidates
    version: str


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, message: str, status: int = 400, param: str | None = None, *, kind: str | None = None
    ) -> None:
        super().__init__(message)
        kinds = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
        self.status, self.param, self.kind = status, param, kind or kinds[status]

    def reply(self) -> Reply:
        """The answer."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return self.status, {"error": error}


def in_worker(message: str) -> Refused:
    """What the server says of an error of its worker."""
    return Refused(
        f"Call to collective_rpc method failed: Worker failed with error '{message}', please check "
        "the stack trace above for the root cause",
        500,
    )


def models(named: Iterable[tuple[str, str]], base: str, max_length: int) -> JSON:
    """The answer of `/v1/models`: the served model, then its adapters."""
    cards: list[JSON] = []
    for name, root in named:
        own = name == base
        cards.append(
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
                "root": root,
                "parent": None if own else base,
                "max_model_len": max_length if own else None,
                "permission": [{"id": f"modelperm-{name}", "object": "model_permission"}],
            }
        )
    return {"object": "list", "data": cards}


def check_prompt(ids: Sequence[int], known: int, max_length: int, given: JSON) -> None:
    """Raise `Refused` for a prompt that the model cannot read; `known` tokens are let through."""
    if ids and max(ids) >= known:
        raise Refused(f"Token id {max(ids)} is out of vocabulary")
    if len(ids) > max_length:
        raise Refused(
            f"Input length ({len(ids)}) exceeds model's maximum context length ({max_length})."
        )
    if len(ids) == max_length:
        raise Refused(
            f"The decoder prompt (length {len(ids)}) plus the number of requested output tokens "
            f"(at least 1) is longer than the maximum model length of {max_length}. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens (prompt + requested "
            "output tokens)."
        )
    if given.get("stop") and given.get("detokenize") is False:
        raise Refused(
            "stop strings are only supported when detokenize is True. Set detokenize=True to use "
            "stop."
        )


def check_bias(given: JSON, vocabulary: int) -> None:
    """Raise `Refused` for a bias of a token that the model does not have."""
    tokens = [int(token) for token in given.get("logit_bias") or ()]
    beyond = [token for token in tokens if not 0 <= token < vocabulary]
    if beyond:
        raise Refused(
            f"token_id(s) {beyond} in logit_bias contain out-of-vocab token ids. Vocabulary size: "
            f"{vocabulary} (parameter=logit_bias, value={beyond})",
            param="logit_bias",
        )


def warmed(candidates: Candidates, temperature: float) -> Candidates:
    """The same at another temperature; exact where all of the vocabulary is known."""
    if temperature == 1.0:
        return candidates
    values = [value / temperature for _, value in candidates]
    most = max(values)
    total = most + math.log(math.fsum(math.exp(value - most) for value in values))
    return tuple((c[0], value - total) for c, value in zip(candidates, values, strict=True))


def stopped(
    codec: Codec, drawn: Sequence[Drawn], given: JSON
) -> tuple[str, int | str | None] | None:
    """Why a reply ends with its last token: finish_reason and stop_reason."""
    last = drawn[-1].token
    if len(drawn) < int(given.get("min_tokens") or 0):
        return None
    if last == codec.tokenizer.eos_token_id and not given.get("ignore_eos"):
        return "stop", None
    if last in (given.get("stop_token_ids") or ()):
        return "stop", last
    strings: list[str] = [*(given.get("stop") or ())]
    text = codec.decode([d.token for d in drawn]) if strings else ""
    return next((("stop", stop) for stop in strings if stop in text), None)


def generated(
    body: JSON,
    name: str,
    codec: Codec,
    drawn: Sequence[Drawn],
    ended: tuple[str, int | str | None],
    prompt_scores: Sequence[Candidates] | None,
    *,
    nan: bool,
) -> JSON:
    """The answer of `/inference/v1/generate`."""
    prompt, given = body["token_ids"], body["sampling_params"]
    count = given.get("logprobs")
    content = None if count is None else [_scored(d, count, nan=nan) for d in drawn]
    choice: JSON = {
        "index": 0,
        "finish_reason": ended[0],
        "stop_reason": ended[1],
        "token_ids": [d.token for d in drawn],
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": _spans(drawn),
        "logprobs": None if content is None else {"content": content},
    }
    return {
        "request_id": f"generate-tokens-{body.get('request_id') or id(drawn)}",
        "model": body.get("model") or name,
        "created": int(time.time()),
        "usage": {
            "prompt_tokens": len(prompt),
            "total_tokens": len(prompt) + len(drawn),
            "completion_tokens": len(drawn),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None
        if prompt_scores is None
        else _prompt(codec, prompt, prompt_scores, nan=nan),
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": prompt if body.get("return_token_ids") else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": [choice],
    }


def _scored(drawn: Drawn, count: int, *, nan: bool) -> JSON:
    """A token with its log-probability and its rank, and the most probable ones."""
    ranks = {token: i + 1 for i, (token, _) in enumerate(drawn.candidates)}
    scores = dict(drawn.candidates)
    tokens = [drawn.token]
    tokens += [token for token, _ in drawn.candidates[:count] if token != drawn.token]

    def entry(token: int) -> JSON:
        value = max(FLOOR, scores.get(token, drawn.logprob))
        if nan:
            return {"token_id": token, "logprob": FLOOR, "rank": None}
        return {"token_id": token, "logprob": value, "rank": ranks.get(token)}

    return {**entry(drawn.token), "top_logprobs": [entry(t) for t in tokens[: max(count, 1)]]}


def _spans(drawn: Sequence[Drawn]) -> list[JSON]:
    spans: list[JSON] = []
    for i, d in enumerate(drawn):
        if spans and spans[-1]["version"] == d.version:
            spans[-1]["end"] = i + 1
        else:
            spans.append({"version": d.version, "start": i, "end": i + 1})
    return spans


def _prompt(
    codec: Codec, ids: Sequence[int], scores: Sequence[Candidates], *, nan: bool
) -> list[Any]:
    """The log-probability of each token of a prompt; the first has none."""
    out: list[Any] = [None]
    for token, candidates in zip(ids[1:], scores, strict=True):
        rank = next((i for i, c in enumerate(candidates) if c[0] == token), None)
        value = FLOOR if nan or rank is None else max(FLOOR, candidates[rank][1])
        place, text = 0 if rank is None else rank + 1, codec.decode([token])
        out.append({str(token): {"logprob": value, "rank": place, "decoded_token": text}})
    return out


# ---------------------------------------------------------------- weights


def check_shape(config: Any, given: JSON) -> None:
    """Raise `Refused` where a trainer's model has other dimensions, as the plugin does."""
    own = config.get_text_config()
    for key, value in given.get("model", {}).items():
        if (mine := getattr(own, key, None)) != value:
            raise in_worker(f"this server's model has {key}={mine!r}, the trainer's {value!r}")


def tensors_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder's safetensors files."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{str(folder)!r} has no *.safetensors on this machine")
    for file in files:
        opened: Any = safe_open(file, "pt")
        with opened as tensors:
            names: list[str] = list(tensors.keys())
            yield from ((name, tensors.get_tensor(name)) for name in names)


def adapters_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """What adapters in peft's format add to the weights of a model, by name."""
    config: JSON = json.loads((folder / "adapter_config.json").read_text())
    tensors = dict(tensors_of(folder))
    scale = config["lora_alpha"] / config["r"]
    for name, a in tensors.items():
        if ".lora_A." in name:
            target = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
            yield target, scale * (tensors[name.replace(".lora_A.", ".lora_B.")] @ a)
