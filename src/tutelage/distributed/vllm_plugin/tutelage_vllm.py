"""A plugin for vLLM servers, which loads weights from a folder of safetensors files.

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
    """The trainer's model layout, by keys of its Hugging Face config."""

    model: dict = field(default_factory=dict)


@dataclass
class Update(WeightTransferUpdateInfo):
    """The path of a folder that this server can read."""

    path: str = ""


class FileEngine(WeightTransferEngine[Init, Update]):
    """A weight-transfer engine that loads the model's tensors from a folder."""

    init_info_cls, update_info_cls = Init, Update
    began = False
    """True while the model is being loaded."""

    def init_transfer_engine(self, init_info):
        """Raise `ValueError` if the trainer has another model layout."""
        config = self.model_config.hf_text_config
        for key, value in init_info.model.items():
            mine = getattr(config, key, None)
            if mine != value:
                raise ValueError(f"server has {key}={mine!r}, but trainer has {key}={value!r}")

    def start_weight_update(self):
        """Do nothing, so that the model stays as it is if the folder cannot be read."""
        self.began = False

    def update_weights(self, update_info):
        """Load the tensors of a folder."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info):
        """Load tensors one by one, in the checkpoint's format."""
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
        """Finish loading the weights.

        On the CPU a tied output head has separately packed weights, which vLLM's reload does not
        update.
        """
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
        """Do nothing, since no resources are kept between updates."""


def register():
    """Register the engine. vLLM calls this in each process (entry point `vllm.general_plugins`)."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "tutelage_file" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("tutelage_file", FileEngine)
