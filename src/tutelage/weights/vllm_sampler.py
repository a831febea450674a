"""The vLLM servers of a run: those that others started, or one of its own; made from its keys.

`placement.py` samples the trained policy there; a policy beside it, and the one before training,
are sampled in this process. Of several ranks the first one, which has the whole policy, talks to
them. What is started here ends with the run.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tutelage import files
from tutelage.policy.sources import local_folder
from tutelage.runs.folder import SERVER_LOG, RunFolder
from tutelage.runs.progress import Progress
from tutelage.runs.resume_hint import resume_hint
from tutelage.weights.inputs import TrainingInputs

if TYPE_CHECKING:
    from tutelage.engine.vllm import VLLMEngine

WEIGHTS, MODEL = "vllm_weights", "vllm_model"
"""In the run folder until the run ends: what is sent to the servers, and what one of its own
serves."""


class Servers:
    """The engine, and what has to be closed with it."""

    def __init__(self, setting: TrainingInputs, folder: RunFolder, progress: Progress) -> None:
        """Raises `ConfigError` or `EngineError` where a server cannot be used; then all that was
        written is the log of a server of the run's own."""
        from tutelage.engine.vllm import VLLMEngine
        from tutelage.engine.vllm_launch import LocalServer, ServerOptions
        from tutelage.engine.weight_transfer import WeightTransfer

        rollout, on_cpu = setting.config.rollout, setting.choice.device.type == "cpu"
        lora, dtype = rollout.weight_transfer == "lora", setting.choice.numerics.dtype
        # A temporary name, so that nothing of the user's is there, and the next run clears it.
        model = files.temporary_path(folder.path / MODEL)
        with ExitStack() as closing:
            for place in (model, folder.path / WEIGHTS):
                closing.callback(shutil.rmtree, place, ignore_errors=True)
            urls = rollout.servers
            if not urls:
                server_options = ServerOptions(
                    _base(setting, model),
                    str(dtype).removeprefix("torch."),
                    setting.context,
                    adapters=setting.config.model.lora.rank if lora else 0,
                    tensor_parallel=1 if on_cpu else rollout.tensor_model_parallel_size,
                    memory=rollout.gpu_memory_utilization,
                    sequences=rollout.slots,
                    on_cpu=on_cpu,
                )
                local = LocalServer(
                    rollout.vllm_python or sys.executable,
                    server_options,
                    folder.path / SERVER_LOG,
                    progress.note,
                    lambda: setting.given is not None and setting.given.manager.stopping,
                )
                closing.callback(local.stop)
                local.wait()
                urls = (local.url,)
            base = _base(setting, model) if lora else None
            transfer = WeightTransfer(folder.path / WEIGHTS, dtype, base)
            self.engine: VLLMEngine = VLLMEngine(
                urls,
                setting.policy,
                transfer,
                run=folder.path,
                dtype=dtype,
                max_length=setting.context,
                patience=rollout.server_patience,
                note=progress.note,
                resume_hint=lambda: resume_hint(folder.path),
            )
            closing.callback(self.engine.close)
            self._closing = closing.pop_all()

    def metrics(self) -> dict[str, float]:
        """What the last update of the weights showed, for a step's metrics."""
        return {} if self.engine.probed is None else {"vllm/probe": self.engine.probed}

    def close(self) -> None:
        """Give up servers of others, and end the run's own."""
        self._closing.close()


def _base(setting: TrainingInputs, place: Path) -> str:
    """A folder with the model: the one that is named, else a copy at `place` of what was made or
    passed."""
    path, given = setting.config.model.path, setting.given
    if path is not None and (given is None or not given.policies):
        return local_folder(path)
    setting.policy.save(place, replace=True)
    return str(place)
