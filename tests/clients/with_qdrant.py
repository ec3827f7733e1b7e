"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from fastembed import TextEmbedding
from qdrant_client import QdrantClient, models

from whiten import UsageError
from whiten.integrations.fastembed import load, register

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
model = load(bundle, "birds")
assert register(bundle, "birds") == "birds"  # again: nothing changes
assert isinstance(model, TextEmbedding)
client = QdrantClient(":memory:")
client.create_collection("birds", models.VectorParams(size=model.embedding_size, distance=models.Distance.COSINE))
client.upload_collection("birds", vectors=list(model.embed(texts[:2])), payload=[{"text": text} for text in texts[:2]])
question = next(iter(model.embed("How do herons fish?"))).tolist()
assert client.query_points("birds", query=question, limit=1).points[0].payload == {"text": texts[0]}
for change, message in (
    ({"default_prompt_name": "query"}, "default prompt 'query'"),
    ({"dimension": 7}, "384 dimensions"),
):
    other = Path(out).with_name(next(iter(change)))
    shutil.copytree(bundle, other)
    manifest = json.loads((other / "whiten.json").read_text("utf-8"))
    manifest = {name: value for name, value in manifest.items() if name not in ("manifest_sha256", "space")}
    (other / "whiten.json").write_text(json.dumps(manifest | change), "utf-8")
    try:
        register(other, "birds")
    except UsageError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"{change} was not refused")
np.savez(out, plain=np.stack(list(model.embed(texts))))
