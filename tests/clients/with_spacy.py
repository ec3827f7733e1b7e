"""Run in the frameworks' environment, with whiten's folders in PYTHONPATH: BUNDLE TEXTS.json OUT.npz."""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import spacy

import whiten.integrations.spacy

bundle, file, out = sys.argv[1:]
texts = json.loads(Path(file).read_text("utf-8"))
nlp = spacy.blank("en")
nlp.add_pipe("whiten", config={"bundle": bundle})
folder = Path(out).with_suffix("")
nlp.to_disk(folder)
nlp = spacy.load(folder)  # the configuration of the component opens the bundle again
assert isinstance(nlp.get_pipe("whiten"), whiten.integrations.spacy.BundleVectors)
heron, rates, question = nlp.pipe([*texts[:2], "How do herons fish?"], batch_size=2)
with warnings.catch_warnings():
    warnings.simplefilter("error")  # spaCy warns where it compares empty vectors
    assert question.similarity(heron) > question.similarity(rates) + 0.1
    assert abs(question.similarity(question) - 1) < 1e-5
    assert abs(question.vector_norm - np.linalg.norm(question.vector)) < 1e-4
unit = spacy.blank("en")
unit.add_pipe("whiten", config={"bundle": bundle, "normalize_embeddings": True, "prompt_name": "query"})
np.savez(
    out,
    plain=[doc.vector for doc in nlp.pipe(texts)],
    unit_queries=[unit(text).vector for text in texts],
)
