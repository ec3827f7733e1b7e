"""What the readers of the pages have before the first command: files of texts, vectors and pairs, bundles."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from support.hub import make_snapshot
from support.sts import rows
from support.vectors import anisotropic
from whiten_runtime.files.corpus import builtin_sentences

ROOT = Path(__file__).parents[2]


def everyday(count: int, first: int = 0) -> list[str]:
    """Return sentences of the built-in corpus, evenly spaced; another first one gives others."""
    found = [sentence for _, sentence in builtin_sentences()]
    return found[first :: len(found) // count][:count]


def write_table(path: Path, column: str, texts: Sequence[str]) -> None:
    """Write a .csv file of ids and texts."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", column), *enumerate(texts)])


def write_lines(path: Path, texts: Sequence[str]) -> None:
    """Write a .txt file."""
    path.write_text("\n".join(texts) + "\n", "utf-8")


def bert_on_my_corpus(folder: Path, hub: Path) -> None:
    """Write texts from before and after the export, pairs, and a small random BERT in the cache of the hub."""
    from support.checkpoints import save_checkpoint

    choose_layers(folder, hub)
    save_checkpoint("bert", make_snapshot(hub, "google-bert/bert-base-uncased"), num_hidden_layers=12, widened=2)
    write_table(folder / "mine.csv", "body", everyday(1000))
    write_table(folder / "later.csv", "body", everyday(300, 1))


def whiteningbert(folder: Path, hub: Path) -> None:
    """Write files as the authors' repository has them, and a small random BERT of twelve layers in the hub's cache."""
    from support.checkpoints import save_checkpoint
    from support.sts import write_paper_layout
    from whiten_evaluation.sts import SUBSETS

    save_checkpoint("bert", make_snapshot(hub, "google-bert/bert-base-uncased"), num_hidden_layers=12, widened=2)
    write_paper_layout(folder / "sts" / "examples" / "datasets" / "stsbenchmark", tuple(SUBSETS), 60)


def published_model(folder: Path, hub: Path) -> None:
    """Write texts, and a small random folder laid out as BGE's in the hub's cache."""
    from support.published import save_published

    save_published("bge-small", make_snapshot(hub, "BAAI/bge-small-en-v1.5"))
    write_lines(folder / "texts.txt", everyday(200))


def api_vectors(folder: Path, hub: Path) -> None:
    """Write vectors as an API gives them, of texts from before and after the fit."""
    vectors = anisotropic(4500, 256).astype(np.float32)
    np.save(folder / "vectors.npy", vectors[:4000])
    np.save(folder / "later.npy", vectors[4000:])


def choose_layers(folder: Path, hub: Path) -> None:
    """Write pairs with scores, to choose by and to check with."""
    for name, seed in (("pairs", 1), ("held-out", 2)):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("sentence1", "sentence2", "score"), *rows(80, seed)])


def measure_search(folder: Path, hub: Path) -> None:
    """Write a collection in BEIR's layout."""
    write_collection(folder / "mine", "test")


def write_collection(folder: Path, split: str) -> None:
    """Write documents, queries and judgements of which document answers which query."""
    (folder / "qrels").mkdir(parents=True)
    texts = everyday(60)
    documents = [json.dumps({"_id": f"d{n}", "title": "", "text": text}) for n, text in enumerate(texts)]
    queries = [json.dumps({"_id": f"q{n}", "text": text[: len(text) // 2]}) for n, text in enumerate(texts[:20])]
    write_lines(folder / "corpus.jsonl", documents)
    write_lines(folder / "queries.jsonl", queries)
    judgements = [f"q{n}\td{n}\t1" for n in range(20)]
    write_lines(folder / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *judgements])


def whitening(folder: Path, hub: Path) -> None:
    """Write pairs with scores, a collection in BEIR's layout, and texts."""
    texts(folder, hub)
    choose_layers(folder, hub)
    write_collection(folder / "cranfield", "dev")
    write_lines(folder / "texts.txt", everyday(1600))


def refit(folder: Path, hub: Path) -> None:
    """Write the texts of an index, others of today, and a corpus in two parts."""
    texts(folder, hub)
    write_lines(folder / "indexed.txt", everyday(600))
    write_lines(folder / "today.txt", [text for kind, text in builtin_sentences() if kind in ("headline", "news")])


def million_documents(folder: Path, hub: Path) -> None:
    """Write files of documents with ids and titles."""
    texts = everyday(600)
    (folder / "texts").mkdir()
    for number in range(3):
        part = range(200 * number, 200 * number + 200)
        lines = [json.dumps({"id": f"doc-{one}", "title": f"Title {one}", "body": texts[one]}) for one in part]
        write_lines(folder / "texts" / f"part-{number}.jsonl", lines)


def codes(folder: Path, hub: Path) -> None:
    """Write texts to be coded."""
    write_lines(folder / "texts.txt", everyday(600))


def embedding_models(folder: Path, hub: Path) -> None:
    """Write a published model, a model of the reader, titles, and the files of the STS tasks."""
    from support.sts import write_paper_layout
    from whiten_evaluation.sts import SUBSETS

    published_model(folder, hub)
    save_own_model(folder / "my-finetuned-model")
    write_lines(folder / "titles.txt", everyday(50))
    write_paper_layout(folder / "sts", tuple(SUBSETS), 20)


def save_own_model(folder: Path) -> None:
    """Write a model of sentence-transformers with 256 dimensions."""
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    from support.checkpoints import save_checkpoint
    from support.published import save

    network = Transformer(str(save_checkpoint("bert", folder.with_suffix(".network"), widened=8)), max_seq_length=40)
    save([network, Pooling(256, "mean"), Normalize()], folder)


def kept_and_refused(folder: Path, hub: Path) -> None:
    """Write a published model and a Router."""
    from sentence_transformers.base.modules import Dense, Router
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    from support.published import SIZE, save, transformer

    published_model(folder, hub)
    query = [transformer("bert"), Pooling(SIZE, "cls"), Normalize()]
    document = [transformer("bert"), Pooling(SIZE, "mean"), Dense(SIZE, SIZE // 2)]
    routes = Router({"query": query, "document": document}, default_route="document")
    save([routes], folder / "my-router", prompts={"query": "query: ", "document": ""})


def exporting(folder: Path, hub: Path) -> None:
    """Write a BERT of 64 dimensions in the hub's cache, texts and pairs, and a model of each kind."""
    import pyarrow
    import pyarrow.parquet

    from support.checkpoints import save_adapter, save_checkpoint
    from support.families import LAYERS
    from support.onnx_folders import rename_last, save_encoder
    from support.vectors import write_word_vectors

    save_checkpoint("bert", make_snapshot(hub, "google-bert/bert-base-uncased"), num_hidden_layers=12, widened=2)
    write_table(folder / "mine.csv", "body", everyday(1500))
    choose_layers(folder, hub)
    plain = save_checkpoint("bert", folder / "my-checkpoint")
    save_adapter(plain, folder / "my-lora", "AutoModel", "FEATURE_EXTRACTION")
    save_encoder(plain, folder / "onnx-dir", (LAYERS,), rename_last)
    write_word_vectors(folder / "glove.6B.300d.txt", everyday(2000), 300)
    vectors = anisotropic(2000, 64).astype(np.float32)
    pyarrow.parquet.write_table(pyarrow.table({"vector": list(vectors)}), folder / "vectors.parquet")


def texts(folder: Path, hub: Path) -> None:
    """Write texts of the reader: all, in two parts, and others of today."""
    lines = everyday(1600)
    write_lines(folder / "texts.txt", lines[:200])
    write_lines(folder / "mine.txt", lines)
    write_lines(folder / "part1.txt", lines[:800])
    write_lines(folder / "part2.txt", lines[800:])
    write_lines(folder / "today.txt", everyday(300, 1))


def browser(folder: Path, hub: Path) -> None:
    """Copy what the guide uses of a clone."""
    left_out = shutil.ignore_patterns("node_modules", "package-lock.json", "__pycache__")
    for part in ("clients/js", "examples/browser", "examples/node"):
        shutil.copytree(ROOT / part, folder / part, ignore=left_out)


@dataclass(frozen=True)
class Page:
    """Says what the reader of a page has."""

    write: Callable[[Path, Path], None] | None = None  # writes files into the folder and into a cache of the hub
    bundles: tuple[str, ...] = ()  # of the README's set-up and of the start page
    programs: tuple[str, ...] = ()  # besides those of the project


PAGES: Mapping[str, Page] = {
    "guides/embedding": Page(bundles=("minilm",)),
    "guides/exporting": Page(exporting),
    "guides/kept-and-refused": Page(kept_and_refused),
    "guides/precision": Page(bundles=("minilm",)),
    "guides/refit": Page(refit, ("minilm-l0-l1",)),
    "guides/whitening": Page(whitening, ("minilm-l0-l1",)),
    "howto/api-vectors": Page(api_vectors),
    "howto/bert-on-my-corpus": Page(bert_on_my_corpus),
    "howto/change-the-model": Page(bundles=("minilm",)),
    "guides/javascript": Page(browser, programs=("node", "npm", "curl")),
    "howto/long-documents": Page(bundles=("minilm",)),
    "howto/measure-search": Page(measure_search, ("minilm",)),
    "howto/migrate": Page(published_model),
    "howto/million-documents": Page(million_documents, ("minilm",)),
    "howto/other-languages": Page(bundles=("minilm",)),
    "howto/published-model": Page(embedding_models),
    "howto/serve": Page(bundles=("minilm",), programs=("curl",)),
    "howto/sign-a-bundle": Page(bundles=("minilm",)),
    "howto/rag": Page(bundles=("minilm",)),
    "howto/smaller-vectors": Page(codes),
    "howto/vectors-differ": Page(published_model),
    "howto/whiteningbert": Page(whiteningbert),
    "howto/windows-and-macos": Page(bundles=("minilm",)),
}
"""By the page's name; the readers of other pages need nothing but the bundle of the README, or have it made."""


@pytest.fixture(scope="session")
def page_of() -> Callable[[str], Page]:
    """Return a function from the name of a page to what its reader has."""
    return lambda name: PAGES.get(name, Page())
