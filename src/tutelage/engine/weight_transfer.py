"""How a policy's weights reach a vLLM server, and how that they did is probed.

`file` writes the tensors into a folder that both sides can read, and has the server's plugin
(`distributed/vllm_plugin`) load them; `lora` writes the adapters, which vLLM loads by itself. What
is written goes to each server, and again to one that returns. vLLM answers 200 also where a
tensor kept its old values, so after each update a `WeightProbe` compares log-probabilities with the
trainer's. `vllm.py` decides when; `vllm_client.py` has the routes.
"""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tutelage.engine.vllm_client import VLLMClient
from tutelage.errors import ConfigError, EngineError, RemoteError, SyncError
from tutelage.files import temporary_path
from tutelage.policy.folder import save_tensors
from tutelage.types import JSON

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tutelage.policy.model import Policy

PLUGIN = Path(__file__).parents[1] / "distributed" / "vllm_plugin"
"""A folder for the PYTHONPATH of a server."""
BACKEND = "tutelage_file"
_ADAPTER = "tutelage"
_SHARD = 1 << 30
"""Bytes of tensors that are copied and written at once."""
_TOKENS = 32
_COOL = 0.5
_BOUNDS = {"float32": (1e-3, 1e-3), "bfloat16": (0.2, 1.0)}
"""The mean over the tokens, and one token: what two ways of rounding differ by is less. Of a model
of 135 million parameters in bfloat16 that was 0.07, and 0.23."""
_MOVED = 4
"""What updates moved is told from rounding where it is this many times as much."""
_UNSEEN = 0.05
"""The part of the bound that updates may move the trainer by while a server says to the last bit
what it said: in bfloat16 small steps change few weights, and rounding may hide those."""
FLOOR = -9999.0
"""What vLLM says for a log-probability that is no number."""
_SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
)


class WeightTransfer(Protocol):
    """A transport."""

    adapters: bool
    """Whether what it sends are adapters."""

    def open(self, client: VLLMClient, policy: Policy) -> None:
        """Once before the first update. Raises `ConfigError` where the server cannot take any."""
        ...

    def write(self, policy: Policy, version: int) -> None:
        """Write what `send` sends from here on."""
        ...

    def send(self, client: VLLMClient, label: str) -> None:
        """Put what was written to use, under a name. What the server samples meanwhile stands
        still, and goes on under the new weights. Raises `EngineError`."""
        ...


class FileTransfer:
    """All tensors, by a folder and vLLM's weight-transfer calls."""

    adapters = False

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        """`folder` is emptied, and servers read it by this path; `dtype` is what they sample in."""
        self._folder, self._dtype = folder.absolute(), dtype
        self._newest = self._folder

    def open(self, client: VLLMClient, policy: Policy) -> None:
        """See `WeightTransfer`."""
        config: Any = policy.config.get_text_config()
        model = {key: getattr(config, key) for key in _SHAPE if hasattr(config, key)}
        try:
            client.post("/init_weight_transfer_engine", {"init_info": {"model": model}})
        except RemoteError as error:
            text = str(error)
            if "this server's model has" in text:
                raise client.refusal(f"it serves another model: {text}") from error
            raise client.refusal(
                f"unknown weight transfer backend {BACKEND!r} ({text}); put {str(PLUGIN)!r} on its "
                f"""PYTHONPATH and start it with --weight-transfer-config '{{"backend": """
                f""""{BACKEND}"}}', or send adapters: rollout.weight_transfer=lora"""
            ) from error

    def write(self, policy: Policy, version: int) -> None:
        """See `WeightTransfer`."""
        target = _emptied(self._folder, f"version_{version:06d}")
        for number, tensors in enumerate(_shards(policy, self._dtype)):
            save_tensors(tensors, target / f"model_{number:05d}.safetensors")
        self._newest = target

    def send(self, client: VLLMClient, label: str) -> None:
        """See `WeightTransfer`."""
        with _paused(client):
            try:
                client.post("/start_weight_update")
            except RemoteError as error:
                # One that a killed trainer began: the run's own, as `check_owner` has seen.
                if "already active" not in str(error):
                    raise
                with suppress(RemoteError):
                    client.post("/finish_weight_update")
                client.post("/start_weight_update")
            client.post("/update_weights", {"update_info": {"path": str(self._newest)}})
            client.post("/finish_weight_update", {"weight_version": label})


class LoraTransfer:
    """Adapters alone, which vLLM adds to the model that it serves."""

    adapters = True

    def __init__(self, folder: Path, base: str) -> None:
        """`base` is the model that the adapters belong to."""
        self._folder, self._base = folder.absolute(), base
        self._newest = self._folder

    def open(self, client: VLLMClient, policy: Policy) -> None:
        """See `WeightTransfer`."""

    def write(self, policy: Policy, version: int) -> None:
        """See `WeightTransfer`."""
        from tutelage.policy.lora import save_adapter

        # A path of its own for each version: vLLM reuses keys and values by it.
        target = _emptied(self._folder, f"version_{version:06d}")
        if not save_adapter(policy, target, base=self._base):
            raise ConfigError(
                "rollout.weight_transfer=lora needs a policy with adapters, this one has none: set "
                "model.lora.rank, or use rollout.weight_transfer=file"
            )
        self._newest = target

    def send(self, client: VLLMClient, label: str) -> None:
        """See `WeightTransfer`."""
        with _paused(client):
            client.post(
                "/v1/load_lora_adapter",
                {"lora_name": _ADAPTER, "lora_path": str(self._newest), "load_inplace": True},
            )
            client.claim(label)
        client.model = _ADAPTER


class _paused:
    """Nothing is sampled inside. What runs goes on afterwards, or is given up after an error."""

    def __init__(self, client: VLLMClient) -> None:
        self._client = client

    def __enter__(self) -> None:
        self._client.post("/pause?mode=keep")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._client.post("/resume")
        else:
            with suppress(EngineError):
                self._client.post("/pause?mode=abort")


def _emptied(folder: Path, name: str) -> Path:
    """A new folder, as the only one in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    target = folder / name
    target.mkdir(parents=True)
    return target


def _shards(policy: Policy, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Copies of the tensors in main memory, under their Hugging Face names, a part at a time."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in policy.hf_tensors():
        part[name] = tensor.to("cpu", dtype, copy=True).contiguous()
        size += part[name].nbytes
        if size >= _SHARD:
            yield part
            part, size = {}, 0
    if part:
        yield part


# ---------------------------------------------------------------- the probe


@dataclass(frozen=True, slots=True)
class WeightProbe:
    """What the trainer says of 32 fixed tokens, and of the next one at a temperature of 0.5."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    next_plain: tuple[float, ...]
    next_cool: tuple[float, ...]
    """Of each token of the vocabulary, at temperature 1 and 0.5."""
    bound: float
    """Of the mean difference."""
    most: float
    """Of one token's."""

    @staticmethod
    def of(policy: Policy, dtype: torch.dtype) -> WeightProbe:
        """Compute it with the weights of now."""
        import torch

        from tutelage.policy.row import Row

        known = len(policy.codec.tokenizer)
        ids = tuple((7 * i + 3) % known for i in range(_TOKENS + 1))
        row = Row((*ids, 0), (0, *(1,) * (_TOKENS + 1)))
        with torch.no_grad():
            scores_TV = policy.network.distribution([row], 1.0, dtype).float().cpu()
        at = torch.tensor(ids[1:])[:, None]
        last_V = scores_TV[-1]
        return WeightProbe(
            ids,
            tuple(scores_TV[:-1].gather(1, at)[:, 0].tolist()),
            tuple(last_V.tolist()),
            tuple(torch.log_softmax(last_V / _COOL, -1).tolist()),
            *_BOUNDS.get(str(dtype).removeprefix("torch."), _BOUNDS["bfloat16"]),
        )

    def check(self, client: VLLMClient, label: str, replies: ProbeReplies) -> float:
        """The largest difference of a server's log-probabilities from these.

        Raises `SyncError` above the bounds, or where the server still says what it said in
        `replies`, and `ConfigError` where it reports them before the temperature.
        """
        sampling = {"temperature": _COOL, "max_tokens": 1, "seed": 0, "logprobs": 0}
        body: JSON = {
            "model": client.model,
            "token_ids": list(self.ids),
            "cache_salt": f"probe {label}",
            "sampling_params": {**sampling, "prompt_logprobs": 0},
        }
        data = client.ask(body)
        theirs = [
            float(entry[str(token)]["logprob"])
            for token, entry in zip(self.ids[1:], data["prompt_logprobs"][1:], strict=True)
        ]
        worst, mean = _apart(theirs, self.logprobs)
        if min(theirs) <= FLOOR or any(map(math.isnan, theirs)):
            raise SyncError(
                f"the vLLM server {client.url!r} reports non-finite log-probabilities (NaN) "
                "after an update; its weights or kernels are broken. None of its samples were used "
                "for training. Restart the server, and resume the run"
            )
        if not (mean <= self.bound and worst <= self.most):  # also where it is no number
            raise SyncError(
                f"the vLLM server {client.url!r} has different weights than the trainer after an "
                f"update that it reported as done: the log-probabilities of {_TOKENS} tokens "
                f"differ by {worst:.3g} (mean {mean:.3g}); rounding explains at most {self.most:g} "
                f"(mean {self.bound:g}). None of its samples were used for training. It may use "
                "another number format (--dtype), or keep a tensor that the transfer does not cover"
            )
        replies.check(client.url, theirs, self, mean)
        drawn = data["choices"][0]["logprobs"]["content"][0]
        cool, plain = (
            abs(float(drawn["logprob"]) - of[int(drawn["token_id"])])
            for of in (self.next_cool, self.next_plain)
        )
        if cool > self.bound and plain <= self.bound:
            raise client.refusal(
                "it reports log-probabilities before the temperature; start it with "
                "--logprobs-mode processed_logprobs"
            )
        return max(worst, cool)


@dataclass(frozen=True, slots=True)
class _Said:
    """What a server said to the probe, and what the trainer said then."""

    server: tuple[float, ...]
    trainer: tuple[float, ...]
    bound: float | None
    """That of the probe: in another number format both say something else. None is not known."""

    def kept_by(self, theirs: Sequence[float], probe: WeightProbe) -> bool:
        """Whether a server that says `theirs` has the weights of then: it stands where it was, by
        its own rounding and that of then, while the trainer moved away."""
        moved = _apart(probe.logprobs, self.trainer)[1]
        off, changed = (_apart(some, self.server)[1] for some in (self.trainer, theirs))
        return moved > _MOVED * max(off, changed) or (not changed and moved > _UNSEEN * probe.bound)

    def followed_by(self, theirs: Sequence[float], probe: WeightProbe) -> bool:
        """Whether it has moved as the trainer has, told from rounding."""
        went = [now - then for now, then in zip(probe.logprobs, self.trainer, strict=True)]
        came = [now - then for now, then in zip(theirs, self.server, strict=True)]
        return _apart(went, [0.0] * len(went))[1] > _MOVED * _apart(came, went)[1]


class ProbeReplies:
    """What each server said to the probe when it last was seen to follow the trainer: an update
    that changed nothing is known by it, in a resumed run too. Steps that move less than a server
    rounds are added up."""

    def __init__(self, path: Path | None = None) -> None:
        """They are kept in this file, where there is one. Raises `ConfigError` where it is damaged:
        a server that keeps older weights could not be told from one that follows."""
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, _Said] = {}
        if path is not None and path.exists():
            try:
                kept = json.loads(path.read_text())
                self._known = {url: _read(said) for url, said in kept.items()}
            except (
                OSError,
                ValueError,
                TypeError,
                AttributeError,
                KeyError,
                OverflowError,
            ) as error:
                raise ConfigError(
                    f"cannot read {path} ({type(error).__name__}: {error}); without the earlier "
                    "scores of vLLM servers, a server with stale weights may not be detected: "
                    "restart the servers, remove that file, and resume"
                ) from error

    def check(self, url: str, theirs: Sequence[float], probe: WeightProbe, mean: float) -> None:
        """Raises `SyncError` where a server still says what it said before an update. `mean` is
        how far it is from what the trainer says now."""
        now = _Said(tuple(theirs), probe.logprobs, probe.bound)
        with self._lock:
            # The same server may be named otherwise since: its words are known from any name.
            equal = [known for known in self._known.values() if known.server == now.server]
            own = self._known.get(url, now)
            if own.bound not in (None, now.bound) or len(own.server) != len(now.server):
                own = now
            for known in (*equal, own):
                if known.bound in (None, now.bound) and known.kept_by(theirs, probe):
                    raise SyncError(
                        f"the vLLM server {url!r} has the weights of an earlier version after an "
                        f"update that it reported as done: the log-probabilities of {_TOKENS} "
                        f"tokens differ by {_apart(theirs, known.trainer)[1]:.3g} on average from "
                        f"that version, and by {mean:.3g} from the current one. Its samples after "
                        "this update are not used for training; if earlier steps changed less than "
                        "rounding, they may also have been sampled from that version. Restart "
                        "the server, and resume the run"
                    )
            followed = own is now or own.followed_by(theirs, probe)
            self._known[url] = equal[0] if equal else now if followed else own
            if self._path is not None and self._path.parent.is_dir():
                aside = temporary_path(self._path)
                aside.write_text(json.dumps({u: asdict(s) for u, s in self._known.items()}))
                aside.replace(self._path)


def _read(said: JSON) -> _Said:
    for who in ("server", "trainer"):
        numbers = [n for n in said[who] if isinstance(n, float | int) and math.isfinite(n)]
        if len(numbers) != _TOKENS or len(said[who]) != _TOKENS:
            raise ValueError(f"{who} has {len(numbers)} of {_TOKENS} numbers")
    bound = said.get("bound")
    if bound not in (None, *(mean for mean, _ in _BOUNDS.values())):
        raise ValueError(f"invalid bound {bound!r}")
    return _Said(tuple(said["server"]), tuple(said["trainer"]), bound)


def _apart(some: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The largest and the mean difference."""
    off = [abs(a - b) for a, b in zip(some, others, strict=True)]
    return max(off), sum(off) / len(off)
