"""Send a policy's weights to vLLM servers, and verify their arrival with a probe.

`file` writes the tensors into a folder that both sides can read, and the server's plugin
(`distributed/vllm_plugin`) loads them; `lora` writes the adapters, which vLLM loads by itself. The
files are sent to each server, and again to one that returns. vLLM answers 200 even if a tensor kept
its old values, so after each update a `WeightProbe` compares log-probabilities with the trainer's.
`vllm.py` decides when; `vllm_client.py` has the routes.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.engine.vllm_client import GENERATE, VLLMClient
from tutelage.errors import ConfigError, EngineError, RemoteError, SyncError
from tutelage.policy.folder import save_tensors
from tutelage.types import JSON

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tutelage.policy.model import Policy

PLUGIN = Path(__file__).parents[1] / "distributed" / "vllm_plugin"
"""Folder for the PYTHONPATH of a server."""
BACKEND = "tutelage_file"
_ADAPTER = "tutelage"
_TOKENS = 32
_COOL = 0.5
_BOUNDS = {"float32": (1e-3, 1e-3), "bfloat16": (0.2, 1.0)}
"""Limits of the mean and of the largest difference between two ways of rounding. A model of 135
million parameters in bfloat16 had 0.07, and 0.23."""
_MOVED = 4
"""An update is distinguished from rounding if it changes this many times as much."""
_UNSEEN = 0.05
"""Fraction of the bound by which updates may move the trainer while a server's values do not change
in any bit: in bfloat16 small steps change few weights, and rounding may hide those."""
FLOOR = -9999.0
"""Value that vLLM reports for a log-probability that is not a number."""
_SHAPE = ("hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings")


class WeightTransfer:
    """Send weights to vLLM servers: all tensors or only adapters.

    All tensors go through a folder and vLLM's weight-transfer calls. Adapters are added by vLLM to
    the model that it serves.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, base: str | None = None) -> None:
        """Transfer weights through `folder`, which is emptied. Servers read it by the same path.

        Servers sample in `dtype`. With `base`, the model that the adapters belong to, only adapters
        are sent.
        """
        self.adapters = base is not None
        self._folder, self._dtype, self._base = folder.absolute(), dtype, base
        self._newest = self._folder

    def prepare(self, client: VLLMClient, policy: Policy) -> None:
        """Prepare a server for its first weight update. Raises `ConfigError` if it cannot load the
        weights."""
        if self.adapters:
            return
        config: Any = policy.config.get_text_config()
        model = {key: getattr(config, key) for key in _SHAPE if hasattr(config, key)}
        try:
            client.post("/init_weight_transfer_engine", {"init_info": {"model": model}})
        except RemoteError as error:
            raise client.to_error(
                f"the server cannot load this model's weights: {error}. Start it with the trained "
                f"""model, with {str(PLUGIN)!r} on its PYTHONPATH and --weight-transfer-config """
                f"""'{{"backend": "{BACKEND}"}}'; or send adapters: rollout.weight_transfer=lora"""
            ) from error

    def write(self, policy: Policy, version: int) -> None:
        """Write the policy's weights into the transfer folder, for the next calls of `send`."""
        # Use another path for each version: vLLM reuses keys and values by path.
        shutil.rmtree(self._folder, ignore_errors=True)
        target = self._folder / f"version_{version:06d}"
        target.mkdir(parents=True)
        if self._base is None:
            for number, (name, tensor) in enumerate(policy.hf_tensors()):
                copied = tensor.to("cpu", self._dtype, copy=True).contiguous()
                save_tensors({name: copied}, target / f"model_{number:05d}.safetensors")
        else:
            from tutelage.policy.lora import save_adapter

            if not save_adapter(policy, target, base=self._base):
                raise ConfigError(
                    "rollout.weight_transfer=lora needs a policy with adapters, but it has none: "
                    "set model.lora.rank, or use rollout.weight_transfer=file"
                )
        self._newest = target

    def send(self, client: VLLMClient, label: str) -> None:
        """Load the written weights into a server as version `label`. Raises `EngineError`.

        Running requests pause and continue with the new weights; after an error they are aborted.
        """
        client.post("/pause?mode=keep")
        try:
            if self.adapters:
                place = {"lora_name": _ADAPTER, "lora_path": str(self._newest)}
                client.post("/v1/load_lora_adapter", {**place, "load_inplace": True})
                client.set_label(label)
                client.model = _ADAPTER
            else:
                # End an update that a killed trainer of this run began; see `check_owner`.
                with suppress(RemoteError):
                    client.post("/finish_weight_update")
                client.post("/start_weight_update")
                client.post("/update_weights", {"update_info": {"path": str(self._newest)}})
                client.post("/finish_weight_update", {"weight_version": label})
        except BaseException:
            with suppress(EngineError):
                client.post("/pause?mode=abort")
            raise
        client.post("/resume")


# ---------------------------------------------------------------- the probe


Scores = tuple[Sequence[float], Sequence[float]]
"""Log-probabilities of the probe's tokens by a server and by the trainer with the same weights."""


@dataclass(frozen=True, slots=True)
class WeightProbe:
    """Compare a server's log-probabilities with the trainer's, to detect wrong weights.

    The probe has 32 fixed tokens, and the next token at temperature 0.5.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    next_V: Tensor
    """Log-probability of each token of the vocabulary, at temperature 1."""
    bound: float
    """Limit of the mean difference."""
    max_bound: float
    """Limit of one token's difference."""

    @staticmethod
    def compute(policy: Policy, dtype: torch.dtype) -> WeightProbe:
        """Create a probe with the trainer's log-probabilities under the current weights."""
        import torch

        from tutelage.policy.row import Row

        count = len(policy.codec.tokenizer)
        ids = tuple((7 * i + 3) % count for i in range(_TOKENS + 1))
        row = Row((*ids, 0), (0, *(1,) * (_TOKENS + 1)))
        with torch.no_grad():
            scores_TV = policy.network.distribution([row], 1.0, dtype).float().cpu()
        logprobs = scores_TV[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        bounds = _BOUNDS.get(str(dtype).removeprefix("torch."), _BOUNDS["bfloat16"])
        return WeightProbe(ids, tuple(logprobs.tolist()), scores_TV[-1], *bounds)

    def check(self, client: VLLMClient, label: str, old: Scores | None) -> tuple[float, Scores]:
        """Return a server's largest log-probability difference, and the scores for the next check.

        `old` are the scores that the previous check returned.

        Raises `SyncError` above the bounds, or if the server did not change while the trainer did,
        and `ConfigError` if the server reports log-probabilities without the temperature.
        """
        sampling = {"temperature": _COOL, "max_tokens": 1, "seed": 0, "logprobs": 0}
        body: JSON = {
            "model": client.model,
            "token_ids": list(self.ids),
            "cache_salt": f"probe {label}",
            "sampling_params": {**sampling, "prompt_logprobs": 0},
        }
        data = client.post(GENERATE, body)
        served = [
            float(entry[str(token)]["logprob"])
            for token, entry in zip(self.ids[1:], data["prompt_logprobs"][1:], strict=True)
        ]
        worst, mean = _difference(served, self.logprobs)
        if min(served) <= FLOOR or any(map(math.isnan, served)):
            raise SyncError(
                f"the vLLM server {client.url!r} reports non-finite log-probabilities (NaN) after "
                "an update; its weights or kernels are broken: restart it, and resume the run"
            )
        if not (mean <= self.bound and worst <= self.max_bound):  # also if it is not a number
            raise SyncError(
                f"the vLLM server {client.url!r} has different weights than the trainer after an "
                f"update that it reported as done: the log-probabilities of {_TOKENS} tokens "
                f"differ by {worst:.3g} (mean {mean:.3g}); rounding explains at most "
                f"{self.max_bound:g} (mean {self.bound:g}). None of its samples were used for "
                "training. Check its --dtype, and whether the transfer covers all tensors"
            )
        scores: Scores = (served, self.logprobs)
        if old is not None:
            moved, changed = _difference(self.logprobs, old[1])[1], _difference(served, old[0])[1]
            rounding = max(changed, _difference(*old)[1])
            if moved > _MOVED * rounding or (not changed and moved > _UNSEEN * self.bound):
                raise SyncError(
                    f"the vLLM server {client.url!r} has the weights of an earlier version after "
                    f"an update that it reported as done: the log-probabilities of {_TOKENS} "
                    f"tokens changed by {changed:.3g} on average, the trainer's by {moved:.3g}. "
                    "Samples of earlier steps that changed less than rounding may be of that "
                    "version too. Restart the server, and resume the run"
                )
            if changed <= moved / 2:  # accumulate small steps until the server is seen to follow
                scores = old
        drawn = data["choices"][0]["logprobs"]["content"][0]
        token, logprob = int(drawn["token_id"]), float(drawn["logprob"])
        cool, plain = (
            abs(logprob - float((self.next_V / temperature).log_softmax(-1)[token]))
            for temperature in (_COOL, 1.0)
        )
        if cool > self.bound and plain <= self.bound:
            raise client.to_error(
                "the server reports log-probabilities without the temperature; start it with "
                "--logprobs-mode processed_logprobs"
            )
        return max(worst, cool), scores


def _difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the maximum and the mean absolute difference of two sequences."""
    differences = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return max(differences), sum(differences) / len(differences)
