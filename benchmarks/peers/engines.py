"""Put each engine behind the same two functions, and measure one. Runs in the engine's own virtual environment.

Only the standard library and numpy are imported here: the rest is imported by the engine that is asked for.
`prepare` makes what an engine loads; `load` gives a function from texts to vectors, and one from a text to its vector.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

Encode = Callable[[list[str]], np.ndarray]

MAX_TOKENS = int(os.environ.get("MAX_TOKENS", "512"))


class Loaded(NamedTuple):
    """Hold the functions of a loaded engine."""

    many: Encode
    one: Callable[[str], np.ndarray]


def batch_size(texts: list[str], short: int = 32, long: int = 8) -> int:
    """Return texts per batch, the best of 2, 4, 8 and 32 for most peers: many short ones, few of mixed lengths."""
    return short if np.mean([len(text) for text in texts]) < 200 else long


def prepare(engine: str, checkpoint: Path, folder: Path) -> None:
    """Make what `load` needs, if a peer's is not there yet; checkpoint is a directory written by save_pretrained."""
    if (folder / "done").exists() and not engine.startswith("whiten"):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if make := _PREPARE.get(engine.split("-")[0]):
        make(engine, checkpoint, folder)
    (folder / "done").touch()


def load(engine: str, checkpoint: Path, folder: Path, threads: int) -> Loaded:
    """Load an engine with the settings that serve it best."""
    return _LOAD[engine.split("-")[0]](engine, checkpoint, folder, threads)


def _prepare_whiten(engine: str, checkpoint: Path, folder: Path) -> None:
    import subprocess

    config = json.loads((checkpoint / "config.json").read_text())
    layer = 0 if "layer0" in engine else config["num_hidden_layers"]
    command = [str(Path(sys.executable).with_name("whiten-export")), str(checkpoint), "--layers", str(layer)]
    command += ["--whitening", "none", "--no-normalize", "--max-length", str(MAX_TOKENS), "--force"]
    command += ["--out", str(folder / "bundle")]
    subprocess.run([*command, "--precision", "int8" if "int8" in engine else "fp32"], check=True, stdout=sys.stderr)


def _load_whiten(engine: str, checkpoint: Path, folder: Path, threads: int) -> Loaded:
    from whiten import Encoder

    encoder = Encoder(folder / "bundle", threads=threads)
    return Loaded(encoder.encode, encoder.encode)


def _sentence_transformer(path: Path, threads: int, **options: Any) -> Any:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(path), device="cpu", **options)
    model.max_seq_length = MAX_TOKENS
    return model


def _mean_pooled(checkpoint: Path, folder: Path) -> None:
    """Write the checkpoint for sentence-transformers, with mean pooling and nothing after it."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(checkpoint), max_seq_length=MAX_TOKENS)
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="mean")
    SentenceTransformer(modules=[transformer, pooling], device="cpu").save(str(folder))


def _prepare_st(engine: str, checkpoint: Path, folder: Path) -> None:
    _mean_pooled(checkpoint, folder / "model")
    if "onnx" not in engine:
        return
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    model = SentenceTransformer(str(folder / "model"), backend="onnx", device="cpu", model_kwargs={"export": True})
    model.save_pretrained(str(folder / "model"))
    if "int8" in engine:
        export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder / "model"))


def _load_st(engine: str, checkpoint: Path, folder: Path, threads: int) -> Loaded:
    options: dict[str, Any] = {}
    if "onnx" in engine:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        file = "onnx/model_qint8_avx512_vnni.onnx" if "int8" in engine else "onnx/model.onnx"
        kwargs = {"file_name": file, "session_options": settings, "provider": "CPUExecutionProvider"}
        options = {"backend": "onnx", "model_kwargs": kwargs}
    model = _sentence_transformer(folder / "model", threads, **options)
    return Loaded(lambda texts: model.encode(texts, batch_size=batch_size(texts)), model.encode)


def _prepare_openvino(engine: str, checkpoint: Path, folder: Path) -> None:
    """Quantise the graph that sentence-transformers exports with NNCF, on 300 sentences."""
    if "int8" not in engine:
        return
    import nncf
    import openvino

    tokenizer = _tokenizer(checkpoint)
    model = openvino.Core().read_model(str(_exported(folder)))
    names = {name for value in model.inputs for name in value.names}
    sentences = json.loads((folder.parent / "workloads.json").read_text())["calibration"]
    feeds = [_feed([tokenizer.encode(text).ids], names)[0] for text in sentences]
    made = nncf.quantize(model, nncf.Dataset(feeds), model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(made, str(folder / "model.xml"), compress_to_fp16=False)


def _tokenizer(checkpoint: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _feed(ids: list[list[int]], names: set[str]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the inputs of a batch, padded, and its mask."""
    mask = np.arange(max(map(len, ids))) < np.array([len(row) for row in ids])[:, None]
    feed = {"input_ids": np.zeros(mask.shape, np.int64), "attention_mask": mask.astype(np.int64)}
    feed["input_ids"][mask] = np.concatenate(ids)
    if "token_type_ids" in names:
        feed["token_type_ids"] = np.zeros(mask.shape, np.int64)
    return feed, mask


def _load_openvino(engine: str, checkpoint: Path, folder: Path, threads: int) -> Loaded:
    """Compile the graph, and run batches of like length in one stream."""
    import openvino

    tokenizer = _tokenizer(checkpoint)
    hint = "f32" if "fp32" in engine else "bf16" if "bf16" in engine or _has_amx() else "f32"
    config = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    graph = folder / "model.xml" if "int8" in engine else _exported(folder)
    compiled = openvino.Core().compile_model(str(graph), "CPU", config)
    names = {name for value in compiled.inputs for name in value.names}

    def pooled(ids: list[list[int]]) -> np.ndarray:
        feed, mask = _feed(ids, names)
        states = compiled(feed)[0]
        vectors: np.ndarray = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return vectors

    def many(texts: list[str]) -> np.ndarray:
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        groups = by_length(ids, batch_size(texts))
        return in_order(groups, [pooled([ids[index] for index in group]) for group in groups])

    return Loaded(many, lambda text: pooled([tokenizer.encode(text).ids])[0])


def _has_amx() -> bool:
    """Return whether bfloat16 is fast here, which OpenVINO takes for what int8 leaves in floating point."""
    return "amx_bf16" in Path("/proc/cpuinfo").read_text()


def by_length(ids: list[list[int]], size: int) -> list[list[int]]:
    """Return groups of indices of rows, so many in each, the longest rows first."""
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def in_order(groups: list[list[int]], results: Iterable[np.ndarray]) -> np.ndarray:
    """Put the vectors of groups of indices back in order, [n, k]."""
    placed = {
        index: row for group, rows in zip(groups, results, strict=True) for index, row in zip(group, rows, strict=True)
    }
    return np.array([placed[index] for index in range(len(placed))])


def _exported(folder: Path) -> Path:
    """Return the graph that sentence-transformers exported for its own engine."""
    return folder.with_name("st-onnx") / "model" / "onnx" / "model.onnx"


def _load_fastembed(engine: str, checkpoint: Path, folder: Path, threads: int) -> Loaded:
    """Load the graph that sentence-transformers exports, and the tokenizer files beside it."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    source = _exported(folder).parents[1]
    width = json.loads((checkpoint / "config.json").read_text())["hidden_size"]
    TextEmbedding.add_custom_model(
        model="local/model",
        pooling=PoolingType.MEAN,
        normalization=False,
        sources=ModelSource(hf="local/model"),
        dim=width,
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding("local/model", specific_model_path=str(source), threads=threads)
    model.model.tokenizer.enable_truncation(MAX_TOKENS)  # the tokenizer's own file says 128
    return Loaded(
        lambda texts: np.array(list(model.embed(texts, batch_size=batch_size(texts)))),
        lambda text: next(iter(model.embed([text]))),
    )


def _prepare_ctranslate2(engine: str, checkpoint: Path, folder: Path) -> None:
    from ctranslate2.converters import TransformersConverter

    quantization = "int8" if "int8" in engine else None
    TransformersConverter(str(checkpoint)).convert(str(folder / "model"), quantization=quantization)


def _load_ctranslate2(engine: str, checkpoint: Path, folder: Path, threads: int) -> Loaded:
    """Run batches of like length side by side, one thread each, and one text with all threads."""
    import ctranslate2

    tokenizer = _tokenizer(checkpoint)
    kind = "int8" if "int8" in engine else "float32"
    place = str(folder / "model")
    beside = ctranslate2.Encoder(place, "cpu", compute_type=kind, inter_threads=threads, intra_threads=1)
    alone = ctranslate2.Encoder(place, "cpu", compute_type=kind, inter_threads=1, intra_threads=threads)

    def pooled(encoder: Any, ids: list[list[int]]) -> np.ndarray:
        states = np.array(encoder.forward_batch(ids).last_hidden_state)
        mask = np.arange(states.shape[1]) < np.array([len(row) for row in ids])[:, None]
        vectors: np.ndarray = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return vectors

    def many(texts: list[str]) -> np.ndarray:
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        groups = by_length(ids, batch_size(texts, 16, 4))
        with ThreadPoolExecutor(threads) as executor:
            run = executor.map(lambda group: pooled(beside, [ids[index] for index in group]), groups)
            return in_order(groups, run)

    return Loaded(many, lambda text: pooled(alone, [tokenizer.encode(text).ids])[0])


def _prepare_model2vec(engine: str, checkpoint: Path, folder: Path) -> None:
    from model2vec import StaticModel
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    table = load_file(str(checkpoint / "model.safetensors"))["embeddings.word_embeddings.weight"]
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    StaticModel(np.ascontiguousarray(table), tokenizer).save_pretrained(str(folder / "model"))


def _load_model2vec(engine: str, checkpoint: Path, folder: Path, threads: int) -> Loaded:
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(str(folder / "model"))
    return Loaded(lambda texts: model.encode(texts, max_length=MAX_TOKENS), model.encode)


_PREPARE = {
    "whiten": _prepare_whiten,
    "st": _prepare_st,
    "openvino": _prepare_openvino,
    "ctranslate2": _prepare_ctranslate2,
    "model2vec": _prepare_model2vec,
}
_LOAD = {
    "whiten": _load_whiten,
    "st": _load_st,
    "openvino": _load_openvino,
    "fastembed": _load_fastembed,
    "ctranslate2": _load_ctranslate2,
    "model2vec": _load_model2vec,
}


def measure(engine: Loaded, workloads: dict[str, list[str]]) -> dict[str, float]:
    """Return texts per second of each workload in one call, milliseconds of one text at a time, and megabytes.

    Each workload runs once before it counts: OpenVINO compiles kernels for every new shape, and the words are in
    whiten's cache then.
    """
    figures: dict[str, float] = {}
    for name in ("short", "mixed", "long"):
        engine.many(workloads[name])
        begun = time.perf_counter()
        engine.many(workloads[name])
        figures[name] = len(workloads[name]) / (time.perf_counter() - begun)
    status = Path("/proc/self/status").read_text()
    figures["rss"] = int(status.split("VmRSS:")[1].split()[0]) / 1000
    times = []
    for text in workloads["one"]:
        begun = time.perf_counter()
        engine.one(text)
        times.append(1000 * (time.perf_counter() - begun))
    return figures | {"one": median(times)}


def main() -> None:
    """Do the action that is named on the command line, and print what it measured."""
    action, engine, checkpoint, folder, workloads, threads = sys.argv[1:]
    begun = time.perf_counter()
    figures: dict[str, float] = {}
    if action == "prepare":
        prepare(engine, Path(checkpoint), Path(folder))
    else:
        texts = json.loads(Path(workloads).read_text())
        loaded = load(engine, Path(checkpoint), Path(folder), int(threads))
        loaded.one(texts["one"][0])
        cold = 1000 * (time.perf_counter() - begun)
        if action == "measure":
            figures = measure(loaded, texts) | {"cold": cold}
        else:
            vectors = [loaded.many(texts[name]) for name in ("short", "long")]
            np.save(Path(folder) / "vectors.npy", np.concatenate(vectors).astype(np.float32))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
