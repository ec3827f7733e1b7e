"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import sys
from pathlib import Path

import numpy as np
from bertopic import BERTopic
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from whiten.integrations.bertopic import BundleBackend

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
birds = [
    f"{bird} {verb} {place}."
    for bird in ("Herons", "Storks", "Owls")
    for verb in ("fish", "nest", "sleep")
    for place in ("in the reeds", "on the roof", "near the lake", "at night", "in trees")
]
money = [
    f"{who} {verb} {what}."
    for who in ("Banks", "Funds", "Traders")
    for verb in ("sold", "bought", "priced")
    for what in ("bonds", "shares", "new loans", "mortgages", "debt")
]
model = BERTopic(
    embedding_model=BundleBackend(bundle),
    umap_model=PCA(5, random_state=0),
    hdbscan_model=KMeans(2, random_state=0, n_init=3),
)
topics, _ = model.fit_transform(birds + money)
first, second = set(topics[: len(birds)]), set(topics[len(birds) :])
assert (len(first), len(second)) == (1, 1), (first, second)
assert first != second
found, _ = model.transform(["The kingfisher dives.", "The mortgage is expensive."])
assert [found[0]] == list(first)
assert [found[1]] == list(second)
np.savez(out, plain=model.embedding_model.embed_documents(texts))
