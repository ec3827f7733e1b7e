"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import sys
from pathlib import Path

import numpy as np
from txtai import Embeddings

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
embeddings = Embeddings(path=bundle, method="whiten.integrations.txtai.BundleVectors", content=True)
embeddings.index(texts)
assert embeddings.search("How do herons fish?", 1)[0]["text"] == texts[0]
folder = str(Path(out).with_suffix(""))
embeddings.save(folder)
again = Embeddings()
again.load(folder)
assert again.search("Interest rates", 1)[0]["text"] == texts[1]
np.savez(
    out,
    unit_documents=again.batchtransform(texts, "data"),
    unit_queries=np.stack([again.batchtransform([text], "query")[0] for text in texts]),
)
