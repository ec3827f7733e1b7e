"""Write the examples of a model card: how to use a bundle from Python, the command line and other programs."""

import shlex
from collections.abc import Sequence

from whiten_export.writing.quoting import quoted
from whiten_runtime.bundle.graph_names import OUTPUT, VECTORS_INPUT
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.inference.prompts import TEXT

_TEXTS = ("A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell.")


def snippets(manifest: Manifest) -> list[str]:
    """Return the sections of the examples, each with code that runs in the folder that contains the bundle."""
    name = manifest.name
    first = (
        f"The examples need whiten with its extra `cpu`. {quoted(name)} is the bundle's directory; where it was "
        'uploaded to the model hub, its repository, "ORG/NAME", opens it too.'
    )
    sections = _of_vectors(manifest) if manifest.input == "vectors" else _of_texts(manifest)
    return ["## Use", first, *sections]


def _of_texts(manifest: Manifest) -> list[str]:
    name, texts = quoted(manifest.name), _list(_TEXTS)
    file = shlex.quote(manifest.name)
    python = f"""from whiten import Encoder

encoder = Encoder({name})
vectors = encoder.encode({texts})
print(encoder.similarity(vectors, vectors).round(2))"""
    shell = f"""whiten verify {file}
whiten embed {file} {shlex.quote(_TEXTS[0])}"""
    other = f"""from whiten.integrations.sentence_transformers import load

model = load({name})
vectors = model.encode({texts})
print(model.similarity(vectors, vectors))"""
    return [
        *_section("Python", "python", python),
        *_section("Command line", "bash", shell),
        *_section("sentence-transformers", "python", other),
        *_onnxruntime(manifest),
        *_search(manifest),
    ]


def _onnxruntime(manifest: Manifest) -> list[str]:
    """Return the example without whiten; none for a default prompt that its mask would have to leave out."""
    prompt = manifest.prompts.get(manifest.default_prompt_name or "", "")
    if prompt and not manifest.include_prompt:
        return []
    folder = quoted(manifest.name)
    text = quoted(prompt.replace(TEXT, _TEXTS[0]) if TEXT in prompt else prompt + _TEXTS[0])
    direction = "" if manifest.truncation_side == "right" else ', direction="left"'
    code = f"""from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder = Path({folder})
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_truncation({manifest.max_seq_length}{direction})
session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
ids = tokenizer.encode({text}).ids
feed = {{"input_ids": np.array([ids], np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}}
(vectors,) = session.run(["{OUTPUT}"], feed)
print(vectors.shape)"""
    return _section("onnxruntime alone", "python", code)


def _search(manifest: Manifest) -> list[str]:
    """Return the example of a search; with one route of a model, the other side is another bundle's."""
    if manifest.route in ("query", "document"):
        other = "documents" if manifest.route == "query" else "queries"
        words = f"This bundle embeds one side of a search; {other} need the bundle of the other route."
        return ["### Search", words]
    code = f"""from whiten import Encoder

encoder = Encoder({quoted(manifest.name)})
documents = {_list(_TEXTS)}
stored = encoder.encode_document(documents)
scores = encoder.similarity(encoder.encode_query("Who makes music?"), stored)[0]
for row in scores.argsort()[::-1]:
    print(round(float(scores[row]), 2), documents[row])"""
    return _section("Search", "python", code)


def _of_vectors(manifest: Manifest) -> list[str]:
    name, file, width = quoted(manifest.name), shlex.quote(manifest.name), manifest.source.hidden_size
    python = f"""import numpy as np
from whiten import VectorWhitener

vectors = np.random.default_rng(0).normal(size=(3, {width})).astype(np.float32)  # yours
np.save("vectors.npy", vectors)
whitener = VectorWhitener({name})
print(whitener.transform(vectors).shape)"""
    shell = f"""whiten verify {file}
whiten transform {file} --input vectors.npy --out whitened.npy"""
    alone = f"""from pathlib import Path

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(Path({name}) / "onnx" / "model.onnx")
(whitened,) = session.run(["{OUTPUT}"], {{"{VECTORS_INPUT}": np.load("vectors.npy")}})
print(whitened.shape)"""
    search = f"""import numpy as np
from whiten import VectorWhitener

whitener = VectorWhitener({name})
stored = whitener.transform(np.load("vectors.npy"), normalize_embeddings=True)
query = whitener.transform(np.load("vectors.npy")[0], normalize_embeddings=True)
print((stored @ query).argsort()[::-1])"""
    return [
        *_section("Python", "python", python),
        *_section("Command line", "bash", shell),
        *_section("onnxruntime alone", "python", alone),
        *_section("Search", "python", search),
    ]


def _section(title: str, language: str, code: str) -> list[str]:
    fence = "```"
    while fence in code:
        fence += "`"
    return [f"### {title}", f"{fence}{language}\n{code}\n{fence}"]


def _list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"
