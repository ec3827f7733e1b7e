"""Run in the clients' environment: BUNDLE TEXTS.json OUT.npy."""

import json
import sys
from pathlib import Path

import numpy as np
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

bundle, texts, out = sys.argv[1:]
manifest = json.loads((Path(bundle) / "whiten.json").read_text("utf-8"))
TextEmbedding.add_custom_model(
    model="whiten/bundle",
    pooling=PoolingType.DISABLED,
    normalization=False,
    sources=ModelSource(hf="whiten/bundle"),
    dim=manifest["dimension"],
    model_file="onnx/model.onnx",
)
model = TextEmbedding("whiten/bundle", specific_model_path=bundle)
np.save(out, np.stack(list(model.embed(json.loads(Path(texts).read_text("utf-8"))))))
