"""Run in the clients' environment, with whiten's folders in PYTHONPATH: BUNDLE DATA.json OUT.json."""

import json
import shutil
import sys
from pathlib import Path

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskClassification, AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import EncoderProtocol
from mteb.types import PromptType

from whiten import UsageError
from whiten.integrations.mteb import MtebModel

bundle, data, out = sys.argv[1:]
content = json.loads(Path(data).read_text("utf-8"))


def described(name: str, kind: str, main_score: str) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        type=kind,
        main_score=main_score,
        description="Of a test, in memory.",
        dataset={"path": "local", "revision": "local"},
        reference=None,
        category="t2c" if kind == "Classification" else "t2t",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation=None,
    )


class Pairs(AbsTaskSTS):
    metadata = described("Pairs", "STS", "cosine_spearman")
    min_score, max_score = 0, 1

    def load_data(self, num_proc: int | None = None, **kwargs: object) -> None:
        self.dataset = DatasetDict(test=Dataset.from_dict(content["pairs"]))
        self.data_loaded = True


class Labels(AbsTaskClassification):
    metadata = described("Labels", "Classification", "accuracy")
    samples_per_label, n_experiments = len(content["train"]["text"]), 1

    def load_data(self, num_proc: int | None = None, **kwargs: object) -> None:
        self.dataset = DatasetDict({split: Dataset.from_dict(content[split]) for split in ("train", "test")})
        self.data_loaded = True


class Search(AbsTaskRetrieval):
    metadata = described("Search", "Retrieval", "ndcg_at_10")
    ignore_identical_ids = True  # as ArguAna and Quora of mteb

    def load_data(self, num_proc: int | None = None, **kwargs: object) -> None:
        found = content["search"]
        texts = {name: Dataset.from_list(found[name]) for name in ("corpus", "queries")}
        self.dataset = {"default": {"test": {**texts, "relevant_docs": found["relevant"], "top_ranked": None}}}
        self.data_loaded = True


model = MtebModel(bundle)
assert isinstance(model, EncoderProtocol)
options = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
unit = model.encode([{"text": ["a text"]}], convert_to_numpy=True, normalize_embeddings=True, **options)
assert abs(float((unit**2).sum()) - 1) < 1e-5
try:
    mteb.evaluate(model, [Pairs()], encode_kwargs={"precision": "int8"}, cache=None, show_progress_bar=False)
except UsageError as error:
    assert "precision is 'int8'" in str(error)
else:
    raise AssertionError("codes were compared as vectors")
result = mteb.evaluate(model, tasks=[Pairs(), Labels(), Search()], cache=None, show_progress_bar=False)
sts, classification, search = (task.scores["test"][0] for task in result.task_results)
PROMPTS = {"query": "query: ", "passage": "passage: ", "Labels": "class: ", "STS-query": "similar: ", "STS": "alike: "}


def prompted(folder: Path) -> list[str]:
    """Return the prompts that a bundle with many applies to the tasks: none said, query and document of each."""
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / "whiten.json").read_text("utf-8"))
    manifest = {name: value for name, value in manifest.items() if name not in ("manifest_sha256", "space")}
    prompts = {"prompts": PROMPTS, "default_prompt_name": "passage"}
    (folder / "whiten.json").write_text(json.dumps(manifest | prompts))
    told = folder / "config_sentence_transformers.json"
    told.write_text(json.dumps(json.loads(told.read_text("utf-8")) | prompts))
    with_prompts = MtebModel(folder)
    applied: list[str] = []
    with_prompts.model.encode = lambda texts, prompt, **options: applied.append(prompt)  # type: ignore[method-assign]
    retrieval = described("Other", "Retrieval", "ndcg_at_10")
    for task in (Pairs.metadata, Labels.metadata, retrieval):
        for kind in (None, PromptType.query, PromptType.document):
            with_prompts.encode([], task_metadata=task, hf_split="test", hf_subset="default", prompt_type=kind)
    return applied


scores = {
    "prompts": prompted(Path(out).with_name("prompted")),
    "sts": {name: sts[name] for name in ("cosine_spearman", "spearman")},
    "accuracy": classification["accuracy"],
    "search": {
        "nDCG@10": search["ndcg_at_10"],
        "MRR@10": search["mrr_at_10"],
        "R@10": search["recall_at_10"],
        "R@100": search["recall_at_100"],
        "MAP@100": search["map_at_100"],
    },
    "embed_dim": model.mteb_model_meta.embed_dim,
    "max_tokens": model.mteb_model_meta.max_tokens,
    "model_name": result.model_name,
}
Path(out).write_text(json.dumps(scores), "utf-8")
