"""Run in the clients' environment: BUNDLE TEXTS.json OUT.npy."""

import json
import sys
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

bundle, texts, out = sys.argv[1:]
model = SentenceTransformer(bundle, backend="onnx", device="cpu", local_files_only=True)
np.save(out, model.encode(json.loads(Path(texts).read_text("utf-8"))))
