"""A vLLM plugin, loaded by the server and not by us: weights from a folder of safetensors files.

It answers vLLM's own weight-transfer calls (`start_weight_update`, `update_weights({"path": ...})`,
`finish_weight_update`), as the backends `nccl` and `ipc` do, so that a trainer updates a server on
any device by a folder that both can read. Put this folder on the server's PYTHONPATH and start it
with `--weight-transfer-config '{"backend": "tutelage_file"}'`. Written for vLLM 0.32.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)


@dataclass
class Init(WeightTransferInitInfo):
    """What the trainer's model looks like, by keys of its Hugging Face config."""

    model: dict = field(default_factory=dict)


@dataclass
class Update(WeightTransferUpdateInfo):
    """A folder that this server can read."""

    path: str = ""


class FileEngine(WeightTransferEngine[Init, Update]):
    """Reads the tensors of a folder into the model."""

    init_info_cls, update_info_cls = Init, Update
    began = False
    """Whether the model is being loaded."""

    def init_transfer_engine(self, init_info):
        """Refuse a trainer whose model is another one, before anything is changed."""
        config = self.model_config.hf_text_config
        for key, value in init_info.model.items():
            mine = getattr(config, key, None)
            if mine != value:
                raise ValueError(f"server model has {key}={mine!r}, the trainer's {value!r}")

    def start_weight_update(self):
        """Nothing yet: a folder that cannot be read must leave the model as it is."""
        self.began = False

    def update_weights(self, update_info):
        """Load one folder."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info):
        """Load the tensors, one after the other, in the format of a checkpoint."""
        from safetensors import safe_open
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        files = sorted(Path(update_info.path).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"no *.safetensors in {update_info.path!r} on this machine")
        if not self.began:
            initialize_layerwise_reload(self.model)
            self.began = True

        def tensors():
            for file in files:
                with safe_open(file, "pt") as opened:
                    for name in list(opened.keys()):
                        yield name, opened.get_tensor(name)

        self.model.load_weights(tensors())

    def finish_weight_update(self):
        """Put the tensors to use. On the CPU a tied output head has packed weights of its own,
        which a reload leaves as they were."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if not self.began:
            return
        self.began = False
        finalize_layerwise_reload(self.model, self.model_config)
        head, body = getattr(self.model, "lm_head", None), getattr(self.model, "model", None)
        tied = getattr(self.model.config, "tie_word_embeddings", False)
        if head is not None and tied and hasattr(head, "cpu_linear"):
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            head.weight = body.embed_tokens.weight
            dispatch_cpu_unquantized_gemm(head, remove_weight=False)

    def shutdown(self):
        """Nothing is held between updates."""


def register():
    """Called by vLLM in each of its processes (entry point `vllm.general_plugins`)."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "tutelage_file" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("tutelage_file", FileEngine)
