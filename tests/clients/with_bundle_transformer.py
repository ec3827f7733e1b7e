"""Run in the clients' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import sys
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from whiten.integrations.sentence_transformers import load

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
folder = str(Path(out).with_name("saved"))
model = load(bundle)
model.save_pretrained(folder)
again = SentenceTransformer(folder, device="cpu", local_files_only=True)
np.savez(out, opened=model.encode(texts), saved=again.encode(texts))
