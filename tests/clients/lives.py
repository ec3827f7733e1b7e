"""Live with an adapter, in the environment of the frameworks: NAME FOLDER STEPS, with commas between steps.

The folder has bundle `one`, with prompts for queries and documents, `two` of another space, and `texts.json`. Steps are
`made`; `loaded`; `refused` (`one` is gone, or `two` is in its place); and `moved` (`one` is called `other` now).
"""

import copy
import json
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whiten import Encoder

Vectors = Sequence[Any]

USES = 1000


class Life:
    """What an adapter does; those that do less override it."""

    whole = True  # whether it can be pickled

    def make(self, bundle: Path) -> Any:
        raise NotImplementedError

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        raise NotImplementedError

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        return self.documents(adapter, texts)

    def wanted(self, encoder: Encoder, texts: list[str]) -> tuple[Vectors, Vectors]:
        """Return the vectors of documents and of queries."""
        return encoder.encode_document(texts), encoder.encode_query(texts)

    def save(self, adapter: Any, folder: Path) -> None:
        (folder / "stored.pickle").write_bytes(pickle.dumps(adapter))

    def load(self, folder: Path) -> Any:
        return pickle.loads((folder / "stored.pickle").read_bytes())

    def load_from(self, folder: Path, bundle: Path) -> Any:
        """Open what is stored with the bundle at its new place."""
        self.load(folder)  # it can be read, though the bundle is not there
        return self.make(bundle)

    def in_workers(self, adapter: Any, texts: list[str]) -> Vectors:
        """Return vectors of documents that two new processes have computed, which import the framework once."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([type(adapter).__module__])
        with context.Pool(2) as pool:
            parts = pool.starmap(_documents, [(type(self), adapter, part) for part in (texts[::2], texts[1::2])])
        rows: list[Any] = [None] * len(texts)
        rows[::2], rows[1::2] = map(list, parts)
        return rows


def _documents(life: type[Life], adapter: Any, texts: list[str]) -> Vectors:
    return np.asarray(life().documents(adapter, texts))


class OnePrompt(Life):
    """Knows neither queries nor documents."""

    def wanted(self, encoder: Encoder, texts: list[str]) -> tuple[Vectors, Vectors]:
        return (encoder.encode(texts),) * 2


class Bertopic(OnePrompt):
    def make(self, bundle: Path) -> Any:
        from whiten.integrations.bertopic import BundleBackend

        return BundleBackend(bundle)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.embed_documents(texts)
        return found


class Keybert(OnePrompt):
    def make(self, bundle: Path) -> Any:
        from whiten.integrations.keybert import BundleBackend

        return BundleBackend(bundle)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.embed(texts)
        return found


class Chroma(Life):
    def make(self, bundle: Path) -> Any:
        from whiten.integrations.chroma import BundleEmbeddingFunction

        return BundleEmbeddingFunction(bundle)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter(texts) if callable(adapter) else adapter._embed(texts)
        return found

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.embed_query(texts) if callable(adapter) else adapter._embed(texts, is_query=True)
        return found

    def client(self, folder: Path) -> Any:
        import chromadb

        import whiten.integrations.chroma  # noqa: F401

        return chromadb.PersistentClient(str(folder / "chroma"))

    def save(self, adapter: Any, folder: Path) -> None:
        self.client(folder).create_collection("texts", embedding_function=adapter).add(ids=["a"], documents=["a"])

    def load(self, folder: Path) -> Any:
        return self.client(folder).get_collection("texts")  # a collection, which opens the bundle by its name

    def load_from(self, folder: Path, bundle: Path) -> Any:
        self.load(folder).modify(configuration={"embedding_function": self.make(bundle)})
        return self.load(folder)


class Fastembed(Life):
    whole = False  # an open model holds a session of onnxruntime

    def make(self, bundle: Path) -> Any:
        from whiten.integrations.fastembed import load

        return load(bundle, bundle.name)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        return list(adapter.embed(texts))

    def wanted(self, encoder: Encoder, texts: list[str]) -> tuple[Vectors, Vectors]:
        return (encoder.encode(texts, prompt=""),) * 2

    def save(self, adapter: Any, folder: Path) -> None:
        from fastembed import TextEmbedding

        assert TextEmbedding("one").embedding_size  # by its name alone, without the hub

    def load(self, folder: Path) -> Any:
        return self.make(folder / "one")

    def load_from(self, folder: Path, bundle: Path) -> Any:
        return self.make(bundle)

    def in_workers(self, adapter: Any, texts: list[str]) -> Vectors:
        return list(adapter.embed(texts, parallel=2, batch_size=4))


class Haystack(Life):
    """A pipeline of both components."""

    def make(self, bundle: Path) -> Any:
        from haystack import Pipeline

        from whiten.integrations.haystack import BundleDocumentEmbedder, BundleTextEmbedder

        pipeline = Pipeline()
        pipeline.add_component("documents", BundleDocumentEmbedder(str(bundle)))
        pipeline.add_component("queries", BundleTextEmbedder(str(bundle)))
        return pipeline

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        from haystack import Document

        documents = [Document(content=text) for text in texts]
        found = adapter.get_component("documents").run(documents=documents)["documents"]
        return [one.embedding for one in found]

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        return [adapter.get_component("queries").run(text=text)["embedding"] for text in texts]

    def save(self, adapter: Any, folder: Path) -> None:
        (folder / "pipeline.yaml").write_text(adapter.dumps())

    def load(self, folder: Path) -> Any:
        from haystack import Pipeline

        text = (folder / "pipeline.yaml").read_text()
        return Pipeline.loads(text, allowed_modules=["whiten.integrations.haystack"])

    def load_from(self, folder: Path, bundle: Path) -> Any:
        text = (folder / "pipeline.yaml").read_text()
        assert f"bundle: {folder / 'one'}\n" in text
        assert "space: " in text
        (folder / "pipeline.yaml").write_text(text.replace(f"bundle: {folder / 'one'}\n", f"bundle: {bundle}\n"))
        return self.load(folder)


class Langchain(Life):
    def make(self, bundle: Path) -> Any:
        from whiten.integrations.langchain import BundleEmbeddings

        return BundleEmbeddings(bundle)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.embed_documents(texts)
        return found

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        return [adapter.embed_query(text) for text in texts]


class LlamaIndex(Life):
    def make(self, bundle: Path) -> Any:
        from whiten.integrations.llama_index import BundleEmbedding

        return BundleEmbedding(bundle)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.get_text_embedding_batch(texts)
        return found

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        return [adapter.get_query_embedding(text) for text in texts]

    def save(self, adapter: Any, folder: Path) -> None:
        (folder / "stored.json").write_text(json.dumps(adapter.to_dict()))

    def load(self, folder: Path) -> Any:
        from whiten.integrations.llama_index import BundleEmbedding

        return BundleEmbedding.from_dict(json.loads((folder / "stored.json").read_text()))

    def load_from(self, folder: Path, bundle: Path) -> Any:
        stored = json.loads((folder / "stored.json").read_text())
        (folder / "stored.json").write_text(json.dumps(stored | {"bundle": str(bundle)}))
        return self.load(folder)


class Mteb(OnePrompt):
    def make(self, bundle: Path) -> Any:
        from whiten.integrations.mteb import MtebModel

        return MtebModel(bundle)

    def documents(self, adapter: Any, texts: list[str], kind: str = "document") -> Vectors:
        found: Vectors = adapter.encode(
            [{"text": texts}], task_metadata=None, hf_split="test", hf_subset="default", prompt_type=kind
        )
        return found

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        return self.documents(adapter, texts, "query")

    def wanted(self, encoder: Encoder, texts: list[str]) -> tuple[Vectors, Vectors]:
        return Life.wanted(self, encoder, texts)

    def save(self, adapter: Any, folder: Path) -> None:
        """Do nothing: mteb stores results alone."""

    def load(self, folder: Path) -> Any:
        return self.make(folder / "one")

    def load_from(self, folder: Path, bundle: Path) -> Any:
        return self.make(bundle)


class SentenceTransformers(Life):
    def make(self, bundle: Path) -> Any:
        from whiten.integrations.sentence_transformers import load

        return load(bundle)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.encode_document(texts)
        return found

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.encode_query(texts)
        return found

    def save(self, adapter: Any, folder: Path) -> None:
        adapter.save_pretrained(str(folder / "copy"))

    def load(self, folder: Path) -> Any:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder / "copy"), trust_remote_code=True)

    def load_from(self, folder: Path, bundle: Path) -> Any:
        return self.make(bundle)


class Sklearn(OnePrompt):
    def make(self, bundle: Path) -> Any:
        from sklearn.pipeline import make_pipeline

        from whiten.integrations.sklearn import BundleVectorizer

        return make_pipeline(BundleVectorizer(bundle))

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.transform(texts)
        return found

    def load_from(self, folder: Path, bundle: Path) -> Any:
        return self.load(folder).set_params(bundlevectorizer__bundle=bundle)


class Spacy(OnePrompt):
    whole = False  # a pipeline is stored by to_disk

    def make(self, bundle: Path) -> Any:
        import spacy

        import whiten.integrations.spacy  # noqa: F401

        nlp = spacy.blank("en")
        nlp.add_pipe("whiten", config={"bundle": str(bundle)})
        return nlp

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        return [doc.vector for doc in adapter.pipe(texts)]

    def save(self, adapter: Any, folder: Path) -> None:
        adapter.to_disk(folder / "spacy")

    def load(self, folder: Path, **options: Any) -> Any:
        import spacy

        import whiten.integrations.spacy  # noqa: F401

        return spacy.load(folder / "spacy", **options)

    def load_from(self, folder: Path, bundle: Path) -> Any:
        return self.load(folder, config={"components": {"whiten": {"bundle": str(bundle)}}})

    def in_workers(self, adapter: Any, texts: list[str]) -> Vectors:
        from spacy.tokens import Doc, DocBin

        from whiten.integrations.spacy import restore

        doc = adapter(texts[0])
        assert (doc.has_vector, abs(doc.vector_norm - np.linalg.norm(doc.vector)) < 1e-5) == (True, True)
        binary = DocBin(store_user_data=True)
        binary.add(doc)
        (stored,) = DocBin(store_user_data=True).from_bytes(binary.to_bytes()).get_docs(adapter.vocab)
        ways = [stored, Doc(adapter.vocab).from_bytes(doc.to_bytes()), pickle.loads(pickle.dumps(doc)), doc.copy()]
        for one in (*map(restore, ways), *ways[2:]):
            assert np.array_equal(one.vector, doc.vector)
            assert abs(one.similarity(doc) - 1) < 1e-5
        assert doc.similarity(doc[0]) == 0
        return [restore(doc).vector for doc in adapter.pipe(texts, n_process=2, batch_size=4)]


class Txtai(Life):
    whole = False  # an index is stored by save

    def make(self, bundle: Path) -> Any:
        from txtai import Embeddings

        return Embeddings(path=str(bundle), method="whiten.integrations.txtai.BundleVectors", content=True)

    def documents(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.batchtransform(texts, "data")
        return found

    def queries(self, adapter: Any, texts: list[str]) -> Vectors:
        found: Vectors = adapter.batchtransform(texts, "query")
        return found

    def wanted(self, encoder: Encoder, texts: list[str]) -> tuple[Vectors, Vectors]:
        unit: Any = {"normalize_embeddings": True}
        return encoder.encode_document(texts, **unit), encoder.encode_query(texts, **unit)

    def save(self, adapter: Any, folder: Path) -> None:
        adapter.index(["a", "b"])
        adapter.save(str(folder / "txtai"))

    def load(self, folder: Path, **options: Any) -> Any:
        from txtai import Embeddings

        index = Embeddings()
        index.load(str(folder / "txtai"), **options)
        return index

    def load_from(self, folder: Path, bundle: Path) -> Any:
        index = self.load(folder, config={"path": str(bundle)})
        index.save(str(folder / "txtai"))
        return self.load(folder)

    def in_workers(self, adapter: Any, texts: list[str]) -> Vectors:
        return self.documents(adapter, texts)


LIVES: dict[str, type[Life]] = {
    "bertopic": Bertopic,
    "keybert": Keybert,
    "chroma": Chroma,
    "fastembed": Fastembed,
    "haystack": Haystack,
    "langchain": Langchain,
    "llama_index": LlamaIndex,
    "mteb": Mteb,
    "sentence_transformers": SentenceTransformers,
    "sklearn": Sklearn,
    "spacy": Spacy,
    "txtai": Txtai,
}


def check(life: Life, adapter: Any, bundle: Path, texts: list[str]) -> None:
    """Check the vectors of documents and queries."""
    encoder = Encoder(bundle)
    for wanted, found in zip(
        life.wanted(encoder, texts), (life.documents(adapter, texts), life.queries(adapter, texts)), strict=True
    ):
        same(found, wanted)


def same(found: Vectors, wanted: Vectors) -> None:
    difference = np.abs(np.asarray(found) - np.asarray(wanted)).max()
    assert difference <= 1e-5 * np.linalg.norm(wanted, axis=1).max(), difference


def opened(count: Callable[[], object]) -> int:
    """Return the number of bundles that are opened meanwhile: by whiten, or by a program as a graph alone."""
    import onnxruntime

    number, begin, create = 0, Encoder._open, onnxruntime.InferenceSession.__init__

    def counted(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal number
        number += 1
        begin(self, *arguments, **options)

    def created(self: Any, *arguments: Any, **options: Any) -> None:
        nonlocal number
        number += sys._getframe(1).f_globals["__name__"].startswith("fastembed")
        create(self, *arguments, **options)

    Encoder._open, onnxruntime.InferenceSession.__init__ = counted, created
    try:
        count()
    finally:
        Encoder._open, onnxruntime.InferenceSession.__init__ = begin, create
    return number


def use(life: Life, make: Callable[[], Any], many: list[str]) -> Any:
    """Return an adapter that was used a thousand times, half of them as queries, and opened its bundle once."""
    adapter = None

    def work() -> None:
        nonlocal adapter
        adapter = make()
        for number in range(USES):
            (life.documents if number % 2 else life.queries)(adapter, [many[number % len(many)]])

    number = opened(work)
    assert number == 1, f"opened {number} times"
    return adapter


def made(life: Life, folder: Path, texts: list[str]) -> None:
    adapter = use(life, lambda: life.make(folder / "one"), texts)
    check(life, adapter, folder / "one", texts)
    other = life.make(folder / "two")
    check(life, other, folder / "two", texts)  # two bundles at once
    check(life, adapter, folder / "one", texts)
    same(life.in_workers(adapter, texts), life.documents(adapter, texts))
    if life.whole:
        for again in (copy.copy(adapter), copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
            check(life, again, folder / "one", texts)
    life.save(adapter, folder)


def loaded(life: Life, folder: Path, texts: list[str]) -> None:
    adapter = use(life, lambda: life.load(folder), texts)
    check(life, adapter, folder / "one", texts)


def refused(life: Life, folder: Path, texts: list[str]) -> None:
    """Write why what is stored cannot be used into a file, null if it can."""
    lines = None
    try:
        life.documents(life.load(folder), texts)
    except Exception as error:
        lines = [f"{type(one).__name__}: {one}" for one in (error, error.__cause__) if one is not None]
    (folder / "refused.json").write_text(json.dumps(lines and " | ".join(lines)))


def moved(life: Life, folder: Path, texts: list[str]) -> None:
    check(life, life.load_from(folder, folder / "other"), folder / "other", texts)


STEPS = {step.__name__: step for step in (made, loaded, refused, moved)}


if __name__ == "__main__":
    name, place, steps = sys.argv[1:]
    for step in steps.split(","):
        STEPS[step](LIVES[name](), Path(place), json.loads(Path(place, "texts.json").read_text("utf-8")))
