"""Run in the clients' environment: CHECKPOINT OUT. A BERT, exported by optimum with all hidden states as outputs."""

import sys

from optimum.exporters.onnx import main_export
from optimum.exporters.onnx.model_configs import BertOnnxConfig
from transformers import AutoConfig

checkpoint, out = sys.argv[1:]


class WithHiddenStates(BertOnnxConfig):
    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        axes = {0: "batch_size", 1: "sequence_length"}
        names = (f"hidden_states.{layer}" for layer in range(self._config.num_hidden_layers + 1))
        return {"last_hidden_state": axes} | dict.fromkeys(names, axes)


config = WithHiddenStates(AutoConfig.from_pretrained(checkpoint), task="feature-extraction")
main_export(
    checkpoint,
    out,
    task="feature-extraction",
    custom_onnx_configs={"model": config},
    fn_get_submodels=lambda model: {"model": model},
    model_kwargs={"output_hidden_states": True},
    local_files_only=True,
)
