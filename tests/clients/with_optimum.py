"""Run in the clients' environment: BUNDLE TEXTS.json OUT.npy."""

import json
import sys
from pathlib import Path

import numpy as np
from optimum.onnxruntime import ORTModelForFeatureExtraction
from transformers import AutoTokenizer

bundle, texts, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(bundle, local_files_only=True)
model = ORTModelForFeatureExtraction.from_pretrained(
    bundle, subfolder="onnx", file_name="model.onnx", local_files_only=True
)
rows = json.loads(Path(texts).read_text("utf-8"))
found = []
for start in range(0, len(rows), 16):
    batch = tokenizer(rows[start : start + 16], padding=True, truncation=True, return_tensors="pt")
    found.append(model(**batch).last_hidden_state[:, 0].numpy())
np.save(out, np.concatenate(found))
