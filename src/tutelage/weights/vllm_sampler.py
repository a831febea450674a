"""The vLLM servers of a run: existing ones, or one that the run starts.

`placement.py` samples the main trained policy there; further policies, and the one before training,
are sampled in this process. Only rank 0, which has the whole policy, communicates with the servers.
A server that the run starts ends with it.
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
"""Folders in the run folder until the run ends: the weights sent to servers, and the model that a
started server loads."""


class Servers:
    """The vLLM engine of a run, with its servers and clients."""

    def __init__(self, inputs: TrainingInputs, folder: RunFolder, progress: Progress) -> None:
        """Connect to the servers, or start one.

        Raises `ConfigError` or `EngineError` if a server cannot be used; then only the log of a
        started server was written.
        """
        from tutelage.engine.vllm import VLLMEngine
        from tutelage.engine.vllm_launch import LocalServer, ServerOptions
        from tutelage.engine.weight_transfer import WeightTransfer

        rollout, on_cpu = inputs.config.rollout, inputs.choice.device.type == "cpu"
        lora, dtype = rollout.weight_transfer == "lora", inputs.choice.numerics.dtype
        # A temporary name, so that nothing of the user's is there, and the next run clears it.
        model = files.temporary_path(folder.path / MODEL)
        with ExitStack() as closing:
            for place in (model, folder.path / WEIGHTS):
                closing.callback(shutil.rmtree, place, ignore_errors=True)
            urls = rollout.servers
            if not urls:
                server_options = ServerOptions(
                    _get_model(inputs, model),
                    str(dtype).removeprefix("torch."),
                    inputs.context,
                    adapters=inputs.config.model.lora.rank if lora else 0,
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
                    lambda: inputs.given is not None and inputs.given.manager.stopping,
                )
                closing.callback(local.stop)
                local.wait()
                urls = (local.url,)
            base = _get_model(inputs, model) if lora else None
            transfer = WeightTransfer(folder.path / WEIGHTS, dtype, base)
            self.engine: VLLMEngine = VLLMEngine(
                urls,
                inputs.policy,
                transfer,
                run=folder.path,
                dtype=dtype,
                max_length=inputs.context,
                patience=rollout.server_patience,
                note=progress.note,
                resume_hint=lambda: resume_hint(folder.path),
            )
            closing.callback(self.engine.close)
            self._closing = closing.pop_all()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last weight update."""
        return {} if self.engine.probed is None else {"vllm/probe": self.engine.probed}

    def close(self) -> None:
        """Disconnect from the servers, and stop a server started by the run."""
        self._closing.close()


def _get_model(inputs: TrainingInputs, folder: Path) -> str:
    """Return the folder of the configured model, or save a copy of the policy to `folder`."""
    path, given = inputs.config.model.path, inputs.given
    if path is not None and (given is None or not given.policies):
        return local_folder(path)
    inputs.policy.save(folder, replace=True)
    return str(folder)
