"""V. Vectors: what a bundle gives equals what the authors' program computes, at every length."""

import asyncio
import hashlib
import json
import os
import string
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from tokenizers import Tokenizer

from support.asgi import ask
from support.bundles import copy_bundle, edit_initializer, rewrite_file
from support.checkpoints import save_model2vec
from support.cli import MAIN, invoke, ok, python, refused
from support.corpus import NASTY, sentences
from support.families import LAYERS, MAX_LENGTH
from support.letters import PAD_FIRST, PAD_SECOND, letter_texts, save_letters
from support.onnx_folders import own_vectors, save_encoder
from support.vectors import ROUNDING, worst
from whiten import AsyncEncoder, Batcher, Encoder, TooLongError, VectorWhitener, Whitening
from whiten_runtime.commands.console import whiten

# V2, lengths: a vector equals the network's own computation at every length from 1 token to the longest.

CHARACTERS = string.ascii_lowercase + string.digits + "".join(map(chr, range(0x4E00, 0x4E00 + 63)))
"""The vocabulary of a network over characters: fewer than its texts have."""

COUNTED = {  # architectures that count the tokens that are not the padding id
    "roberta": {"type_vocab_size": 1},
    "xlm-roberta": {"type_vocab_size": 1},
    "esm": {"position_embedding_type": "absolute", "mask_token_id": None},
}


def published_vectors(folder: Path, texts: Sequence[str], length: int | None = None) -> NDArray[np.float32]:
    """Return the vectors of sentence-transformers, which gets one text at a time, and a length where it is named."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = length or model.max_seq_length
    return np.stack([model.encode(text, show_progress_bar=False) for text in texts])


def errors(vectors: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far each vector is from the one that is wanted, over its norm."""
    return np.asarray(np.linalg.norm(vectors - wanted, axis=1) / np.linalg.norm(wanted, axis=1), np.float64)


def spread(longest: int) -> list[int]:
    """Return lengths from the shortest to the longest, and beyond."""
    return [*range(3, 12), *range(20, longest, 13), *range(longest - 3, longest + 4)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("kind", "length"),
    [*(("xlm-roberta", length) for length in (128, 336, 347, 352, 367)), ("roberta", 336), ("esm", 128), ("esm", 352)],
)
def test_v2_a_vocabulary_smaller_than_the_length_has_right_positions_at_each_length(
    kind: str, length: int, precision: str, tmp_path: Path
) -> None:
    folder = save_letters(
        kind,
        tmp_path / "model",
        length + 2,
        letters=CHARACTERS,
        specials=PAD_SECOND,
        tokenizer_length=length,
        **COUNTED[kind],
    )
    ok("export", folder, "--precision", precision, "--out", tmp_path / "bundle")
    texts = letter_texts([number for number in spread(length) if number <= length], CHARACTERS)
    wanted = published_vectors(folder, texts)
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.max_seq_length == length
        alone = np.concatenate([encoder.encode([text]) for text in texts])
        batch = encoder.encode(texts)
    bound = 1e-5 if precision == "fp32" else 0.05
    assert max(errors(alone, wanted).max(), errors(batch, wanted).max()) < bound


# V2 and V5, limits: texts are cut where the authors' program cuts them, and every comparison has texts beyond that.

UNBOUNDED: dict[str, dict[str, Any]] = {  # networks without a table of positions, with their other settings
    "bloom": {},
    "deberta": {"position_biased_input": False, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {
        "position_biased_input": False,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
    },
    "esm": {"position_embedding_type": "rotary", "mask_token_id": None},
    "eurobert": {"num_key_value_heads": 2},
    "gte": {"type_vocab_size": 1},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 16},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "nomic_bert": {},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "t5": {},
}
BOUNDED: dict[str, dict[str, Any]] = {  # networks with a table; roberta's has two rows that no token gets
    "bert": {},
    "gpt2": {},
    "roberta": {"type_vocab_size": 1},
    "roformer": {},
}
ARCHITECTURES = UNBOUNDED | BOUNDED
ROWS = {"roberta": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNBOUNDED)
def test_v2_a_network_without_a_table_of_positions_reads_what_the_authors_program_reads(
    kind: str, tmp_path: Path
) -> None:
    pooling = "last" if "num_key_value_heads" in UNBOUNDED[kind] else "mean"
    options: dict[str, Any] = {"pooling": pooling, "stated": 150, "tokenizer_length": 512} | UNBOUNDED[kind]
    folder = save_letters(kind, tmp_path / "model", 64, **options)
    ok("export", folder, "--out", tmp_path / "bundle")
    texts = letter_texts([3, 4, 30, 63, 64, 65, 66, 100, 149, 150, 151, 152, 300])
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.max_seq_length == 150
        assert errors(encoder.encode(texts), published_vectors(folder, texts)).max() < 1e-5
        assert encoder.truncated == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stated", "tokenizer_length", "asked", "length"),
    [
        (None, 512, None, 64),  # what sentence-transformers takes: the smaller one of tokenizer and config
        (None, 40, None, 40),
        (None, 512, 150, 150),
        (100, 40, None, 100),
        (1300, 512, None, 1300),
    ],
)
def test_v2_a_length_is_the_one_of_sentence_transformers_or_the_one_that_is_asked_for(
    stated: int | None, tokenizer_length: int, asked: int | None, length: int, tmp_path: Path
) -> None:
    lengths: dict[str, Any] = {"stated": stated, "tokenizer_length": tokenizer_length}
    folder = save_letters("llama", tmp_path / "model", 64, pooling="last", num_key_value_heads=2, **lengths)
    ok("export", folder, *([] if asked is None else ["--max-length", asked]), "--out", tmp_path / "bundle")
    texts = letter_texts([3, length - 1, length, length + 1, 2 * length])
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.max_seq_length == length
        assert errors(encoder.encode(texts), published_vectors(folder, texts, asked)).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOUNDED)
def test_v5_a_table_of_positions_is_never_left(kind: str, tmp_path: Path) -> None:
    specials = PAD_SECOND if kind in ROWS else PAD_FIRST
    positions = 64 + ROWS.get(kind, 0)
    folder = save_letters(kind, tmp_path / "model", positions, specials=specials, stated=150, **BOUNDED[kind])
    refused("export", folder, "--max-length", 65, "--out", tmp_path / "bundle")
    assert "warning: " in ok("export", folder, "--out", tmp_path / "bundle").stderr
    texts = letter_texts([3, 30, 63, 64, 65, 200])
    with Encoder(tmp_path / "bundle") as encoder:
        assert encoder.max_seq_length == 64
        vectors = encoder.encode(texts)
        assert encoder.truncated == 2
    assert errors(vectors[:4], published_vectors(folder, texts[:4])).max() < 1e-5
    assert np.isfinite(vectors).all()


@pytest.mark.slow
@pytest.mark.parametrize("letters", ["A", "ACGT", "ACGTNRYKMS"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "qwen3", "t5"])
def test_v2_an_alphabet_of_any_size_is_exported(kind: str, letters: str, tmp_path: Path) -> None:
    specials = PAD_SECOND if kind in ROWS else PAD_FIRST
    options: dict[str, Any] = {"letters": letters, "specials": specials, "tokenizer_length": 64} | ARCHITECTURES[kind]
    folder = save_letters(kind, tmp_path / "model", 66, **options)
    ok("export", folder, "--out", tmp_path / "bundle")
    texts = letter_texts([3, 4, 5, 30, 63, 64], letters)
    with Encoder(tmp_path / "bundle") as encoder:
        assert errors(encoder.encode(texts), published_vectors(folder, texts)).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"max_length": 64}, {"max_length": 7}, {"max_length": None}])
def test_v5_texts_are_cut_at_the_letters_and_tokens_at_which_model2vec_cuts_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = save_model2vec(tmp_path / "model", **settings)
    ok("export", folder, "--out", tmp_path / "bundle")
    texts = ["ag ah", "ag bh " * 2000, "aaaaaaaa " * 300 + "bbbbbbbb " * 300]
    with Encoder(tmp_path / "bundle") as encoder:
        vectors = encoder.encode(texts)
        length = settings.get("max_length", 512)
        # the median of the tokens has two letters
        assert (encoder.manifest.max_characters or None) == (None if length is None else 2 * length)
    import model2vec

    wanted = model2vec.StaticModel.from_pretrained(folder).encode(texts)
    rounding = 1e-5 if length else 3e-5  # of model2vec's sum of 4,000 rows in float32: 1.6e-5 to that in float64
    np.testing.assert_allclose(vectors, wanted, atol=rounding)


# V2, vectors that a graph gives itself.


@pytest.mark.slow
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_v2_a_graph_that_makes_sentence_vectors_keeps_them(
    pooling: str, unit: bool, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = save_encoder(
        checkpoint("bert"), tmp_path / "encoder", (LAYERS,), own_vectors("sentence_embedding", pooling, unit=unit)
    )
    import transformers

    ok("export", folder, "--out", tmp_path / "bundle")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    texts = ["A cat.", "the dog and the fox run over the field", "word " * 300]
    with Encoder(tmp_path / "bundle") as encoder:
        vectors = encoder.encode(texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [np.array([tokenizer(text, truncation=True, max_length=MAX_LENGTH)["input_ids"]]) for text in texts]
    feeds = ({"input_ids": row, "attention_mask": np.ones_like(row)} for row in rows)
    wanted = np.concatenate([session.run(["sentence_embedding"], feed)[0] for feed in feeds])
    assert errors(vectors, wanted).max() < 1e-5


# V4, maps of few vectors.


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 10, 200])
def test_v4_vectors_that_are_only_centred_keep_their_products(
    count: int, checkpoint: Callable[[str], Path], corpus_file: Path, tmp_path: Path
) -> None:
    lines = corpus_file.read_text("utf-8").splitlines()
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(lines[:count]) + "\n", "utf-8")
    options = ("export", checkpoint("bert"), "--layers", "1,4", "--whitening")
    ok(*options, "none", "--out", tmp_path / "plain")
    ok(*options, "centre", "--corpus", corpus, "--out", tmp_path / "centred")
    texts = [*lines[200:230], "The ferry leaves at noon.", "x"]
    with Encoder(tmp_path / "plain") as plain, Encoder(tmp_path / "centred") as centred:
        rows = plain.encode(texts).astype(np.float64) - plain.encode(lines[:count]).astype(np.float64).mean(axis=0)
        got = centred.encode(texts).astype(np.float64)
    np.testing.assert_allclose(got @ got.T, rows @ rows.T, atol=1e-5 * np.square(rows).sum(axis=1).max())


@pytest.mark.filterwarnings("ignore:.*do not come out with deviation 1")
@pytest.mark.parametrize("method", ["pca", "zca", "cholesky", "zca-cor", "pca-cor"])
def test_v4_a_direction_of_rounding_is_dropped_and_the_others_are_whitened(method: str) -> None:
    """One column is the sum of the others, far from 0, so that float32 rounds it by 1e-11 of the largest variance."""
    vectors = np.random.default_rng(0).normal(size=(4000, 12)) @ np.diag(np.geomspace(3, 0.5, 12))
    rows = np.column_stack([vectors, vectors.sum(axis=1) + 300]).astype(np.float32)
    white = Whitening(method).fit(rows).transform(rows).astype(np.float64)
    values = np.linalg.eigvalsh(np.cov(white.T))
    np.testing.assert_allclose(values[1:], 1, atol=1e-3)
    assert abs(values[0]) < 1e-12


# V1: a text's vector depends on nothing but the text, whatever is in the call, by which door it comes.

BUNDLES = ("bundle-v1", "bundle-v1-int8")
BOUNDS = {"bundle-v1": ROUNDING, "bundle-v1-int8": 1e-6}
"""Largest difference over the norm: products of int8 are exact, and what is between them is float32."""

WORDS = st.sampled_from([*sentences(40), *NASTY[:12]])
TEXTS = st.lists(st.one_of(WORDS, st.text(max_size=30), st.builds("{0} {1}".format, WORDS, WORDS)), max_size=40)


@pytest.fixture(scope="module")
def encoders(golden: Path) -> Iterator[dict[tuple[str, int], Encoder]]:
    """Open each bundle with one thread and with two."""
    opened = {(name, threads): Encoder(golden / name, threads=threads) for name in BUNDLES for threads in (1, 2)}
    yield opened
    for encoder in opened.values():
        encoder.close()


@pytest.mark.parametrize("name", BUNDLES)
@given(texts=TEXTS, batch_size=st.one_of(st.none(), st.integers(1, 9)), random=st.randoms())
def test_v1_a_vector_depends_on_its_text_only(
    encoders: dict[tuple[str, int], Encoder], name: str, texts: list[str], batch_size: int | None, random: Random
) -> None:
    one = encoders[name, 1]
    alone = np.stack([one.encode([text])[0] for text in texts]) if texts else np.empty((0, one.dimension))
    order = list(range(len(texts)))
    random.shuffle(order)
    for threads in (1, 2):
        encoder = encoders[name, threads]
        calls = [
            encoder.encode(texts, batch_size=batch_size),
            np.array(list(encoder.encode_iter(iter(texts)))).reshape(-1, one.dimension),
            np.array([encoder.encode(text) for text in texts]).reshape(-1, one.dimension),
        ]
        if texts:
            shuffled = np.empty_like(alone)
            shuffled[order] = encoder.encode([texts[index] for index in order])
            calls.append(shuffled)
        for vectors in calls:
            assert worst(vectors, alone) <= BOUNDS[name]


def tables_of(folder: Path) -> NDArray[np.float32]:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(folder).to_pylist()
    return np.array([row["embedding"] for row in rows], np.float32)


@pytest.mark.parametrize("name", BUNDLES)
def test_v1_a_vector_is_the_same_by_every_door(
    encoders: dict[tuple[str, int], Encoder], golden: Path, name: str, tmp_path: Path
) -> None:
    texts = [text for text in (*sentences(30), *NASTY) if text and "\n" not in text and "\r" not in text]
    texts = [text for text in texts if text.splitlines() == [text]]
    want = encoders[name, 1].encode(texts)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", "utf-8")
    ok("embed", golden / name, "--input", tmp_path / "texts.txt", "--out", tmp_path / "vectors.npy")
    printed = ok("embed", golden / name, "--input", tmp_path / "texts.txt").stdout.splitlines()
    doors = {
        "embed --out": np.load(tmp_path / "vectors.npy"),
        "embed": np.array([json.loads(line)["embedding"] for line in printed], np.float32),
    }
    with Batcher(golden / name) as batcher:
        doors["Batcher"] = batcher.submit(texts).result()
        doors["Batcher, one by one"] = np.stack([future.result() for future in map(batcher.submit, texts)])

    async def by_http() -> None:
        async with AsyncEncoder(golden / name) as encoder:
            doors["AsyncEncoder"] = await encoder.encode(texts)
            app, unit = encoder.asgi_app(), name == "bundle-v1-int8"  # whose graph divides by the norm
            openai = (await ask(app, "POST", "/v1/embeddings", {"input": texts, "model": "any"})).json()
            doors["OpenAI"] = np.array([row["embedding"] for row in openai["data"]], np.float32)
            coded = {"input": texts, "model": "any", "encoding_format": "base64"}
            rows = (await ask(app, "POST", "/v1/embeddings", coded)).json()["data"]
            doors["OpenAI, base64"] = np.stack([np.frombuffer(b64decode(row["embedding"]), "<f4") for row in rows])
            tei = (await ask(app, "POST", "/embed", {"inputs": texts, "normalize": unit})).json()
            doors["TEI"] = np.array(tei, np.float32)
            ollama = (await ask(app, "POST", "/api/embed", {"input": texts, "model": "any"})).json()
            doors["Ollama"] = np.array(ollama["embeddings"], np.float32)

    asyncio.run(by_http())
    for door, vectors in doors.items():
        wanted = want
        if door == "Ollama" and worst(vectors, want) > BOUNDS[name]:  # it divides by the norm, as Ollama does
            wanted = want / np.linalg.norm(want, axis=1, keepdims=True)
            assert worst(vectors, wanted) <= BOUNDS[name], door
            continue
        assert worst(vectors, wanted) <= BOUNDS[name], door


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLES)
def test_v1_a_bulk_job_gives_the_same_vectors(
    encoders: dict[tuple[str, int], Encoder], golden: Path, name: str, tmp_path: Path
) -> None:
    texts = sentences(300)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", "utf-8")
    job = ("embed-many", golden / name, "--input", tmp_path / "texts.txt", "--out", tmp_path / "many")
    assert python(f"import sys; {MAIN}", *job).returncode == 0
    assert worst(tables_of(tmp_path / "many"), encoders[name, 2].encode(texts)) <= BOUNDS[name]


# V3: an int8 bundle gives the same vectors in every kernel, batch and program.


def test_v3_int8_gives_the_same_vectors_whatever_a_program_optimises(
    encoders: dict[tuple[str, int], Encoder], golden: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(golden / "bundle-v1-int8" / "tokenizer.json"))
    tokenizer.no_padding()
    encoder = encoders["bundle-v1-int8", 2]
    texts = [text for text in sentences(80) if len(tokenizer.encode(text).ids) <= encoder.max_seq_length]
    rows, want = [encoding.ids for encoding in tokenizer.encode_batch(texts)], encoder.encode(texts)
    assert len(rows) > 30
    level = onnxruntime.GraphOptimizationLevel
    for optimisation in (level.ORT_DISABLE_ALL, level.ORT_ENABLE_BASIC, level.ORT_ENABLE_ALL):
        for threads in (1, 2):
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level, options.intra_op_num_threads = optimisation, threads
            path = str(golden / "bundle-v1-int8" / "onnx" / "model.onnx")
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for size in (1, 7, len(rows)):
                for start in range(0, len(rows), size):
                    part = rows[start : start + size]
                    width = min(max(map(len, part)) + size % 3, encoder.max_seq_length)  # more padding changes nothing
                    ids, mask = np.zeros((2, len(part), width), np.int64)
                    for index, row in enumerate(part):
                        ids[index, : len(row)], mask[index, : len(row)] = row, 1
                    feed = {"input_ids": ids, "attention_mask": mask}
                    (vectors,) = session.run(["sentence_embedding"], feed)
                    assert worst(vectors, want[start : start + size]) <= 1e-6


@pytest.mark.parametrize(("times", "code"), [(1.1, 0), (1.6, 1), (2.2, 1), (4, 1)])
def test_v3_a_machine_that_loses_more_than_the_exporters_is_told_so(
    golden: Path, tmp_path: Path, times: float, code: int
) -> None:
    """Products that saturate lose 2.2 times as much: the bounds of int8 alone would let them pass."""
    bundle = copy_bundle(golden / "bundle-v1-int8", tmp_path)
    probes = load_file(bundle / "probes.safetensors")
    texts = json.loads((bundle / "probes.json").read_text("utf-8"))["texts"]
    with Encoder(bundle) as encoder:
        lost, got = 1 - encoder.manifest.parity.mean_cosine, encoder.encode(texts)
    stored, noise = probes["embeddings"], np.random.default_rng(0).normal(size=probes["embeddings"].shape)
    noise *= np.linalg.norm(stored, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)

    def moved(part: float) -> NDArray[np.float64]:
        return stored + part * noise

    def loss(part: float) -> float:
        rows = moved(part)
        cosines = (got * rows).sum(axis=1) / np.linalg.norm(got, axis=1) / np.linalg.norm(rows, axis=1)
        return float(1 - cosines.mean())

    parts = np.linspace(0, 0.3, 3001)
    part = next(part for part in parts if loss(part) >= times * lost)
    assert loss(part) < 0.009  # within the bounds of int8
    rewrite_file(bundle, "probes.safetensors", save(probes | {"embeddings": moved(part)}))
    assert invoke(whiten, "verify", bundle).exit_code == code


@pytest.mark.slow
def test_v3_the_same_int8_bundle_is_made_with_any_number_of_threads(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    made = set[str]()
    for threads, core in ((1, "Haswell"), (2, "Haswell"), (2, "Prescott")):
        target = tmp_path / f"{threads}-{core}"
        arguments = ("export", checkpoint("bert"), "--precision", "int8", "--layers", "1,4", "--out", target)
        variables = {"WHITEN_THREADS": threads, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        environment["OPENBLAS_CORETYPE"] = core
        done = python(MAIN, *arguments, "--whitening", "none", env=environment)
        assert done.returncode == 0, done.stderr
        made.add(hashlib.sha256((target / "onnx" / "model.onnx").read_bytes()).hexdigest())
    assert len(made) == 1


# V4: after a fit the covariance is the identity, and the mean 0.

METHODS = ("pca", "zca", "cholesky", "pca-cor", "zca-cor")


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 12), scale=st.integers(-6, 6), spread=st.integers(0, 3))
def test_v4_the_covariance_of_fitted_vectors_is_the_identity(
    method: Any, seed: int, width: int, scale: int, spread: int
) -> None:
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(width, width)) + np.eye(width) * 3
    assume(np.linalg.cond(mixing) < 1000)  # float64 loses the square of it
    scales = 10.0 ** (scale + generator.uniform(-spread, spread, size=width))
    vectors = (generator.normal(size=(60 * width + 40, width)) @ mixing + generator.normal(size=width)) * scales
    white = Whitening(method).fit_transform(vectors)
    np.testing.assert_allclose(np.cov(white, rowvar=False).reshape(width, width), np.eye(width), atol=1e-6)
    np.testing.assert_allclose(white.mean(axis=0), np.zeros(width), atol=1e-6)
    fitted = Whitening(method).fit(vectors)
    covariance = fitted.weight_.T @ np.cov(vectors, rowvar=False).reshape(width, width) @ fitted.weight_
    np.testing.assert_allclose(covariance, np.eye(width), atol=1e-6)


# V5: a text of exactly the limit is not truncated; one token more is, from the model's side, and counted once.


def token_ids_of(bundle: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def vector_of(bundle: Path, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the vector that onnxruntime computes of token ids."""
    session = onnxruntime.InferenceSession(str(bundle / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    row = np.array([ids], np.int64)
    vector: NDArray[np.float32] = session.run(
        ["sentence_embedding"], {"input_ids": row, "attention_mask": np.ones_like(row)}
    )[0][0]
    return vector


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("more", [-1, 0, 1, 2, 30])
def test_v5_tokens_beyond_the_limit_are_cut_from_the_models_side_and_counted_once(
    tiny_bundle: Path, tmp_path: Path, side: str, more: int
) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path, truncation_side=side)
    with Encoder(bundle) as encoder:
        limit = encoder.max_seq_length
        words = [
            word
            for word in ["the", "one", "two", "three", "four", "not", "and", "of", "to", "in", "is", "for"]
            if count(bundle, word) == 3
        ]
        text = " ".join(words[index % len(words)] for index in range(limit + more - 2))
        ids = token_ids_of(bundle, text)
        assert len(ids) == limit + more
        inner = ids[1:-1]
        read = inner if more <= 0 else inner[more:] if side == "left" else inner[:-more]
        vectors = encoder.encode([text, "short", text])
        assert worst(vectors[[0, 2]], np.stack([vector_of(bundle, [ids[0], *read, ids[-1]])] * 2)) < ROUNDING
        assert encoder.truncated == (2 if more > 0 else 0)
        encoder.encode(text)
        assert encoder.truncated == (3 if more > 0 else 0)
        if more > 0:
            with pytest.raises(TooLongError, match=rf"texts\[1\] has {limit + more} tokens"):
                encoder.encode(["short", text], truncate=False)
        else:
            assert worst(encoder.encode([text], truncate=False), vectors[:1]) < ROUNDING
        assert encoder.truncated == (3 if more > 0 else 0)


def count(bundle: Path, text: str) -> int:
    return len(token_ids_of(bundle, text))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("more", [-1, 0, 1, 500])
def test_v5_characters_beyond_the_bound_are_cut_from_the_models_side_and_counted_once(
    tiny_bundle: Path, tmp_path: Path, side: str, more: int
) -> None:
    """Blanks give no tokens: only the bound of characters decides whether both ends of the text are read."""
    bundle = copy_bundle(tiny_bundle, tmp_path, truncation_side=side)
    bound = 400
    first, last = "the first words of one", "not the last words of two"
    text = first + " " * (bound + more - len(first) - len(last)) + last
    assert len(text) == bound + more
    read = text if more <= 0 else text[-bound:] if side == "left" else text[:bound]
    exact = last + " " * (bound - len(first) - len(last)) + first
    with Encoder(bundle, max_characters=bound) as encoder:
        want = np.stack([vector_of(bundle, token_ids_of(bundle, part)) for part in (read, exact)])
        assert worst(encoder.encode([text, exact]), want) < ROUNDING
        assert encoder.truncated == (more > 0)
        whole = vector_of(bundle, token_ids_of(bundle, text))
        assert worst(encoder.encode([text], max_characters=10_000), whole[None]) < ROUNDING
        if more > 0:
            with pytest.raises(TooLongError, match=rf"texts\[0\] has {bound + more} characters"):
                encoder.encode([text], truncate=False)
        else:
            encoder.encode([text], truncate=False)


# V6: truncate_dim, precision and normalize_embeddings commute with batching, and equal numpy on the float32 vectors.

SETTINGS = st.fixed_dictionaries(
    {
        "normalize_embeddings": st.booleans(),
        "truncate_dim": st.sampled_from([None, 1, 7, 31, 32]),
        "precision": st.sampled_from(["float32", "int8", "uint8", "binary", "ubinary"]),
        "batch_size": st.sampled_from([None, 1, 3]),
    }
)


def by_numpy(plain: NDArray[np.float32], encoder: Encoder, options: dict[str, Any]) -> NDArray[Any]:
    rows = plain[:, : options["truncate_dim"]].astype(np.float64)
    if options["normalize_embeddings"]:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows.astype(np.float32)
    if options["precision"] == "float32":
        return rows
    if options["precision"] in ("binary", "ubinary"):
        bits = np.packbits(rows > 0, axis=1)
        return bits if options["precision"] == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    low, high = encoder.ranges(
        normalize_embeddings=options["normalize_embeddings"], truncate_dim=options["truncate_dim"]
    )
    steps = np.clip(np.floor((rows - low) / ((high - low) / 255)), 0, 255)
    return steps.astype(np.uint8) if options["precision"] == "uint8" else (steps - 128).astype(np.int8)


@given(texts=st.lists(WORDS, min_size=1, max_size=9), options=SETTINGS)
def test_v6_what_follows_the_graph_equals_numpy(tiny: Encoder, texts: list[str], options: dict[str, Any]) -> None:
    plain = tiny.encode(texts)
    got, want = tiny.encode(texts, **options), by_numpy(plain, tiny, options)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if options["precision"] == "float32":
        assert worst(got, want) < ROUNDING
    elif options["precision"] in ("binary", "ubinary"):
        near_zero = np.abs(plain[:, : options["truncate_dim"]]) < 1e-4  # a sign that rounding may turn
        different = np.unpackbits((got ^ want).view(np.uint8), axis=1)[:, : near_zero.shape[1]].astype(bool)
        assert not (different & ~near_zero).any()
    else:
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1  # a step that rounding may reach
        assert (got != want).mean() < 0.02


@pytest.fixture(scope="module")
def scaled(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VectorWhitener]:
    """A whitener whose map is the identity, so that vectors of any size come out as they are."""
    bundle = copy_bundle(golden / "bundle-v1-vectors", tmp_path_factory.mktemp("identity"))
    edit_initializer(bundle, "whitening.mean", np.zeros_like)
    edit_initializer(bundle, "whitening.weight", lambda weight: np.eye(*weight.shape, dtype=weight.dtype))
    with VectorWhitener(bundle) as whitener:
        yield whitener


@given(exponent=st.integers(-44, 37), seed=st.integers(0, 99))
def test_v6_vectors_of_every_size_are_divided_by_their_norms(scaled: VectorWhitener, exponent: int, seed: int) -> None:
    rows = np.random.default_rng(seed).uniform(-1, 1, size=(5, scaled.width))
    sizes = 10.0 ** np.array([exponent, exponent, 0, exponent, -exponent / 2])[:, None]
    with np.errstate(over="ignore"):
        vectors = (rows * sizes).astype(np.float32)
    plain = scaled.transform(vectors)
    exact = plain.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    want = exact / np.where(norms > 0, norms, 1)
    np.testing.assert_allclose(scaled.transform(vectors, normalize_embeddings=True), want, atol=3e-7)
    for row, result in zip(vectors, want, strict=True):
        np.testing.assert_allclose(scaled.transform(row, normalize_embeddings=True), result, atol=3e-7)
    cosines = np.clip(want @ want.T, -1, 1)
    np.testing.assert_allclose(scaled.similarity(plain, plain), cosines, atol=2e-6)
