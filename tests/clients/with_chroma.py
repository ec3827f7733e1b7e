"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import shutil
import sys
from pathlib import Path

import chromadb
import numpy as np

from whiten.integrations.chroma import BundleEmbeddingFunction

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
moved = Path(out).with_name("chroma-bundle")
shutil.copytree(bundle, moved)
folder = Path(out).with_name("chroma")
function = BundleEmbeddingFunction(moved)


def opened() -> chromadb.Collection:
    return chromadb.PersistentClient(str(folder)).get_collection("birds")


client = chromadb.PersistentClient(str(folder))
collection = client.create_collection("birds", embedding_function=function)
collection.add(ids=[str(index) for index in range(len(texts))], documents=texts)
assert collection.query(query_texts=["How do herons fish?"], n_results=1)["documents"] == [[texts[0]]]
chromadb.api.client.SharedSystemClient.clear_system_cache()
again = opened()
assert again.query(query_texts=["Interest rates"], n_results=1)["documents"] == [[texts[1]]]
assert again.configuration_json["embedding_function"]["config"]["bundle"] == str(moved)
order = np.argsort([int(one) for one in again.get()["ids"]])
documents = np.array(again.get(include=["embeddings"])["embeddings"])[order]
np.savez(out, documents=documents, queries=function.embed_query(texts))
manifest = json.loads((moved / "whiten.json").read_text("utf-8"))
kept = {name: value for name, value in manifest.items() if name not in ("manifest_sha256", "space")}
other = kept | {"source": kept["source"] | {"weights_sha256": "0" * 64}}
(moved / "whiten.json").write_text(json.dumps(other), "utf-8")
chromadb.api.client.SharedSystemClient.clear_system_cache()
try:
    opened().query(query_texts=["Interest rates"], n_results=1)
except ValueError as error:
    assert "gives '" in str(error)
    assert manifest["space"] in str(error)
else:
    raise AssertionError("a bundle of another space took the place of the collection's")
