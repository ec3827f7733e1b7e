"""Folders with what is rare among published models."""

from dataclasses import replace

from support.published import decoders, networks
from support.published import tokenizer_files as tokenizers
from support.published.folders import Published
from support.published.inputs import Router, StaticEmbedding
from support.published.modules import (
    Dense,
    LayerNorm,
    Normalize,
    Other,
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from support.published.networks import SIZE
from support.published.rows import CLS, IDENTITY, LAST, LONG, MEAN, NORMALIZE, bert, plain
from support.published.tables import truncated, words
from support.published.tokenizer_files import UNLIMITED

RELU, GELU = "torch.nn.modules.activation.ReLU", "torch.nn.modules.activation.GELU"
_SHARED = bert()
_ASYM = Router({"query": (Dense(SIZE),), "doc": (Dense(SIZE, IDENTITY),)}, None, file="config.json", name="Asym")
_LAYERS = Transformer(networks.bert(3, output_hidden_states=True), tokenizers.wordpiece())

RARE: tuple[Published, ...] = (
    # Pooling.
    Published("concatenated", (bert(), Pooling(("cls", "mean", "max"))), generation=2),
    Published("concatenated-new", (bert(), Pooling(("mean", "cls")), NORMALIZE), generation=6),
    Published("sqrt", (bert(), Pooling(("mean_sqrt_len_tokens",))), generation=2),
    Published("max", (bert(), Pooling(("max",)), NORMALIZE)),
    Published(
        "weighted",
        (Transformer(decoders.gpt2(), tokenizers.gpt2(), length=48, stated=1024), Pooling(("weightedmean",))),
    ),
    Published("weighted-layers", (_LAYERS, WeightedLayerPooling(layers=3, start=1), MEAN)),
    # What follows the pooling.
    Published(
        "layer-norm", (bert(), MEAN, LayerNorm(), Dense(SIZE // 2, RELU), NORMALIZE, Dense(SIZE, GELU)), generation=6
    ),
    Published("dropout", (bert(), MEAN, Other("sentence_transformers.models.Dropout", {"dropout": 0.1}), NORMALIZE)),
    Published(
        "residual",
        (
            bert(),
            MEAN,
            Dense(SIZE, GELU, residual=True),
            Dense(SIZE // 2, residual=True),
        ),
        generation=6,
    ),
    Published(
        "dense-of-tokens",
        (bert(), Dense(SIZE // 2, state="token_embeddings"), Pooling(("max",)), NORMALIZE),
        generation=6,
    ),
    Published(
        "dense-custom-activation",
        (bert(), MEAN, Dense(SIZE, "transformers.activations.NewGELUActivation")),
        generation=2,
    ),
    # Routes.
    Published(
        "router",
        (
            Router(
                {
                    "query": (bert(), CLS, NORMALIZE),
                    "document": (bert(3), MEAN, Dense(SIZE, IDENTITY, bias=False)),
                }
            ),
        ),
        generation=6,
        prompts={"query": "query: ", "document": ""},
    ),
    Published(
        "router-static",
        (
            Router(
                {"query": (StaticEmbedding(SIZE, words, path=""),), "document": (bert(), MEAN)},
                path="",
            ),
            Normalize(),
        ),
        generation=6,
        prompts={"query": "", "document": ""},
    ),
    Published(
        "router-shared",
        (Router({"query": (_SHARED, CLS), "document": (_SHARED, MEAN)}, default="query"), NORMALIZE),
        generation=6,
    ),
    Published(
        "router-tail",
        (bert(), MEAN, Router({"query": (Dense(SIZE),), "document": (Dense(SIZE, IDENTITY),)}), NORMALIZE),
        generation=6,
    ),
    Published(
        "asym",
        (bert(), MEAN, _ASYM),
        generation=2,
    ),
    # Tokenizers and lengths.
    Published(
        "lower-case",
        (Transformer(networks.bert(), tokenizers.wordpiece(lowercase=False), lowercase=True), MEAN),
        generation=2,
    ),
    Published(
        "truncation-left",
        (
            Transformer(
                networks.bert(),
                tokenizers.wordpiece(truncation_side="left"),
                length=24,
            ),
            MEAN,
        ),
    ),
    Published("in-folder", (replace(bert(length=24, lowercase=True), path="0_Transformer"), MEAN), generation=2),
    # Whether </s> is put behind a text, tokenizer.json and tokenizer_config.json answer differently.
    Published(
        "eos-flag",
        (
            Transformer(
                decoders.mistral(),
                tokenizers.llama(eos=False, add_eos_token=True, pad_token="</s>", padding_side="left"),
                length=LONG,
            ),
            LAST,
        ),
    ),
    plain("plain-unlimited", replace(bert(), stated=UNLIMITED)),
    plain("plain-chat", Transformer(decoders.qwen2(), tokenizers.qwen(eos=True), stated=LONG)),
    Published("static-truncated", (StaticEmbedding(SIZE, truncated), NORMALIZE)),
    Published("static-half", (StaticEmbedding(SIZE, words, "model2vec", ".", "float16"), NORMALIZE), settings=None),
    # Prompts.
    Published(
        "default-prompt",
        (bert(), MEAN, NORMALIZE),
        prompts={"query": "query: ", "passage": "passage: ", "sts": "similar: "},
        default_prompt="passage",
        similarity="dot",
    ),
    Published(
        "prompt-left",
        (
            Transformer(decoders.qwen3(2), tokenizers.qwen(eos=True), length=LONG, stated=131072),
            Pooling(include_prompt=False),
        ),
        prompts={"query": "Query: "},
    ),
    # Networks.
    Published(
        "bidirectional",
        (
            Transformer(decoders.qwen2(is_causal=False), tokenizers.qwen(eos=True), length=LONG, stated=32768),
            LAST,
            NORMALIZE,
        ),
        minimum="5.2",
    ),
    Published("half", (Transformer(networks.bert(dtype="float16"), tokenizers.wordpiece()), MEAN, NORMALIZE)),
    Published(
        "bfloat16",
        (
            Transformer(decoders.qwen3(2, "bfloat16"), tokenizers.qwen(eos=True), length=LONG, stated=131072),
            LAST,
            NORMALIZE,
        ),
    ),
    # What cannot be opened, or not exported.
    Published(
        "cnn",
        (
            bert(),
            Other(
                "sentence_transformers.models.CNN",
                {"in_word_embedding_dimension": SIZE, "out_channels": SIZE, "kernel_sizes": [3]},
                "cnn_config.json",
                {"convs.0.weight": (SIZE, SIZE, 3), "convs.0.bias": (SIZE,)},
            ),
            MEAN,
        ),
    ),
    Published("unknown-module", (bert(), MEAN, Other("my_code.Whiten", {"width": SIZE})), opens=False),
)
