"""Run a framework in their environment, with whiten's folders in PYTHONPATH: NAME BUNDLE TEXTS.json OUT.npz."""

import asyncio
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def bertopic(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from bertopic import BERTopic
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    from whiten.integrations.bertopic import BundleBackend

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
    return {"plain": model.embedding_model.embed_documents(texts)}


def chroma(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    import chromadb

    from whiten import UsageError
    from whiten.integrations.chroma import BundleEmbeddingFunction

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
    found = {"documents": documents, "queries": function.embed_query(texts)}
    manifest = json.loads((moved / "whiten.json").read_text("utf-8"))
    kept = {name: value for name, value in manifest.items() if name not in ("manifest_sha256", "space")}
    other = kept | {"source": kept["source"] | {"parameters_sha256": "0" * 64}}
    (moved / "whiten.json").write_text(json.dumps(other), "utf-8")
    chromadb.api.client.SharedSystemClient.clear_system_cache()
    try:
        opened().query(query_texts=["Interest rates"], n_results=1)
    except UsageError as error:
        assert "gives vectors of the space '" in str(error)
        assert manifest["space"] in str(error)
    else:
        raise AssertionError("a bundle of another space took the place of the collection's")
    return found


def haystack(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from haystack import Document, Pipeline
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.components.writers import DocumentWriter
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    from whiten.integrations.haystack import BundleDocumentEmbedder, BundleTextEmbedder

    OURS = "whiten.integrations.haystack"

    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    indexing = Pipeline()
    indexing.add_component("embedder", BundleDocumentEmbedder(bundle))
    indexing.add_component("writer", DocumentWriter(store))
    indexing.connect("embedder.documents", "writer.documents")
    indexing = Pipeline.loads(indexing.dumps(), allowed_modules=[OURS])  # a file of a pipeline opens the bundle again
    indexing.run({"embedder": {"documents": [Document(content=text) for text in texts[:2]]}})
    writer = indexing.get_component("writer")
    asking = Pipeline()
    asking.add_component("embedder", BundleTextEmbedder(bundle))
    asking.add_component("retriever", InMemoryEmbeddingRetriever(writer.document_store, top_k=1))
    asking.connect("embedder.embedding", "retriever.query_embedding")
    asking = Pipeline.loads(asking.dumps(), allowed_modules=[OURS])
    asking.get_component("retriever").document_store = writer.document_store
    found = asking.run({"embedder": {"text": "How do herons fish?"}})["retriever"]["documents"]
    assert [one.content for one in found] == [texts[0]]
    documents = [Document(content=text) for text in texts]
    embedded = BundleDocumentEmbedder(bundle).run(documents=documents)["documents"]
    assert [one.content for one in embedded] == texts
    assert all(one.embedding is None for one in documents)
    embedder = BundleDocumentEmbedder(bundle)
    refused(embedder.run, documents[0], "documents is Document")
    refused(embedder.run, "a text", "documents is str 'a text'; wanted a list of Document")
    refused(embedder.run, [documents[0], "a text"], "documents[1] is str 'a text'; wanted a Document")
    titled = BundleDocumentEmbedder(bundle, meta_fields_to_embed=["title", "absent"], embedding_separator=" | ")
    with_title = titled.run(documents=[Document(content=texts[0], meta={"title": "Birds"})])["documents"][0]
    plain = BundleDocumentEmbedder(bundle).run(documents=[Document(content=f"Birds | {texts[0]}")])["documents"][0]
    assert np.allclose(with_title.embedding, plain.embedding, atol=1e-5)
    texter = BundleTextEmbedder(bundle)
    unit = BundleTextEmbedder.from_dict(BundleTextEmbedder(bundle, normalize_embeddings=True).to_dict())
    return {
        "documents": [one.embedding for one in embedded],
        "queries": [texter.run(text=text)["embedding"] for text in texts],
        "unit_queries": [unit.run(text=text)["embedding"] for text in texts],
    }


def refused(call: Callable[[Any], Any], given: Any, message: str) -> None:
    """Check that a call refuses what it is given."""
    from whiten_runtime.errors import TextError

    try:
        call(given)
    except TextError as error:
        assert message in str(error), error
    else:
        raise AssertionError(f"{given!r} was not refused")


def keybert(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from keybert import KeyBERT

    from whiten.integrations.keybert import BundleBackend

    model = KeyBERT(model=BundleBackend(bundle))
    keywords = model.extract_keywords("The heron stands still in the water, waits for a fish, and strikes.", top_n=2)
    assert keywords[0][0] == "heron", keywords
    vectors, words = model.extract_embeddings(texts[:2])
    assert (len(vectors), len(words[0])) == (2, len(vectors[0]))
    return {"plain": model.model.embed(texts)}


def langchain(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    from whiten.integrations.langchain import BundleEmbeddings

    embeddings = BundleEmbeddings(bundle)
    assert isinstance(embeddings, Embeddings)
    store = InMemoryVectorStore(embeddings)
    ids = store.add_texts(texts)
    assert [found.page_content for found in store.similarity_search("How do herons fish?", k=1)] == [texts[0]]
    assert store.as_retriever(search_kwargs={"k": 1}).invoke("Interest rates")[0].page_content == texts[1]
    query = embeddings.embed_query(texts[2])
    assert isinstance(query[0], float)
    assert asyncio.run(embeddings.aembed_query(texts[2])) == query
    refused(embeddings.embed_documents, texts[0], "wanted a list of str, or embed_query for one text")
    refused(embeddings.embed_query, texts[:2], "texts[0] is list")
    refused(embeddings.embed_query, None, "texts[0] is NoneType None; wanted a str")
    return {
        "documents": [store.store[one]["vector"] for one in ids],
        "queries": [embeddings.embed_query(text) for text in texts],
        "unit_documents": BundleEmbeddings(bundle, normalize_embeddings=True).embed_documents(texts),
    }


def llama_index(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
    from llama_index.core.llms import MockLLM
    from llama_index.core.storage.kvstore import SimpleKVStore

    from whiten import UsageError
    from whiten.integrations.llama_index import BundleEmbedding

    model = BundleEmbedding(bundle)
    stored = model.to_dict()
    assert (stored["bundle"], stored["class_name"]) == (bundle, "WhitenBundleEmbedding")
    again = BundleEmbedding.from_dict(stored)
    pairs = [Document(text=text, id_=str(index)) for index, text in enumerate(texts[:2])]
    index = VectorStoreIndex.from_documents(pairs, embed_model=model)
    assert index.as_retriever(similarity_top_k=1).retrieve("How do herons fish?")[0].text == texts[0]
    answer = index.as_query_engine(llm=MockLLM(), similarity_top_k=1).query("Interest rates")
    assert texts[1] in str(answer)
    for other in (BundleEmbedding.from_dict(stored | {"space": None}), model.model_copy(deep=True)):
        assert other.to_dict() == stored
    try:
        BundleEmbedding(bundle, embeddings_cache=SimpleKVStore())
    except UsageError as error:
        assert "different prompts" in str(error)
    else:
        raise AssertionError("a cache that gives queries vectors of documents was not refused")
    index.storage_context.persist(str(Path(out).with_suffix("")))
    storage = StorageContext.from_defaults(persist_dir=str(Path(out).with_suffix("")))
    reopened = load_index_from_storage(storage, embed_model=again)
    assert reopened.as_retriever(similarity_top_k=1).retrieve("How do herons fish?")[0].text == texts[0]
    assert asyncio.run(model.aget_text_embedding_batch(texts[:3])) == model.get_text_embedding_batch(texts[:3])
    return {
        "documents": model.get_text_embedding_batch(texts),
        "queries": [again.get_query_embedding(text) for text in texts],
        "unit_documents": [
            BundleEmbedding(bundle, normalize_embeddings=True).get_text_embedding(text) for text in texts
        ],
    }


def qdrant(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from fastembed import TextEmbedding
    from qdrant_client import QdrantClient, models

    from whiten import UsageError
    from whiten.integrations.fastembed import load, register

    model = load(bundle, "birds")
    assert register(bundle, "birds") == "birds"  # again: nothing changes
    assert isinstance(model, TextEmbedding)
    client = QdrantClient(":memory:")
    client.create_collection("birds", models.VectorParams(size=model.embedding_size, distance=models.Distance.COSINE))
    client.upload_collection(
        "birds", vectors=list(model.embed(texts[:2])), payload=[{"text": text} for text in texts[:2]]
    )
    question = next(iter(model.embed("How do herons fish?"))).tolist()
    assert client.query_points("birds", query=question, limit=1).points[0].payload == {"text": texts[0]}
    for change, message in (
        ({"default_prompt_name": "query"}, "default prompt 'query'"),
        ({"dimension": 7}, "of another space"),
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
    return {"plain": np.stack(list(model.embed(texts)))}


def spacy(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    import spacy

    import whiten.integrations.spacy

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
    return {
        "plain": [doc.vector for doc in nlp.pipe(texts)],
        "unit_queries": [unit(text).vector for text in texts],
    }


def txtai(bundle: str, texts: list[str], out: str) -> dict[str, Any]:
    from txtai import Embeddings

    embeddings = Embeddings(path=bundle, method="whiten.integrations.txtai.BundleVectors", content=True)
    embeddings.index(texts)
    assert embeddings.search("How do herons fish?", 1)[0]["text"] == texts[0]
    folder = str(Path(out).with_suffix(""))
    embeddings.save(folder)
    again = Embeddings()
    again.load(folder)
    assert again.search("Interest rates", 1)[0]["text"] == texts[1]
    return {
        "unit_documents": again.batchtransform(texts, "data"),
        "unit_queries": np.stack([again.batchtransform([text], "query")[0] for text in texts]),
    }


PROGRAMS: tuple[Callable[[str, list[str], str], dict[str, Any]], ...] = (
    bertopic, chroma, haystack, keybert, langchain, llama_index, qdrant, spacy, txtai,
)  # fmt: skip

if __name__ == "__main__":
    name, folder, file, result = sys.argv[1:]
    (program,) = (one for one in PROGRAMS if one.__name__ == name)
    np.savez(result, **program(folder, json.loads(Path(file).read_text("utf-8")), result))
