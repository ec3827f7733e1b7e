"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import sys
from pathlib import Path

import numpy as np
from keybert import KeyBERT

from whiten.integrations.keybert import BundleBackend

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
model = KeyBERT(model=BundleBackend(bundle))
keywords = model.extract_keywords("The heron stands still in the water, waits for a fish, and strikes.", top_n=2)
assert keywords[0][0] == "heron", keywords
vectors, words = model.extract_embeddings(texts[:2])
assert (len(vectors), len(words[0])) == (2, len(vectors[0]))
np.savez(out, plain=model.model.embed(texts))
