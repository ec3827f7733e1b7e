"""The table of published models."""

from support.published import decoders, networks, prompts
from support.published import tokenizer_files as tokenizers
from support.published.folders import Published
from support.published.inputs import StaticEmbedding
from support.published.modules import Dense, Module, Normalize, Pooling, Transformer
from support.published.networks import SIZE
from support.published.tables import unigram, words
from support.published.tokenizer_files import UNLIMITED, TokenizerFiles

IDENTITY = "torch.nn.modules.linear.Identity"
LONG = 64
"""Length of models whose positions have no table."""

CLS, MEAN, LAST = Pooling(("cls",)), Pooling(), Pooling(("lasttoken",))
NORMALIZE = Normalize()
_OLD = tokenizers.wordpiece(fast=False)
_SPLIT = tokenizers.xlm_roberta()
_JOINED = tokenizers.xlm_roberta(words=False)
_EXPORTED = tokenizers.xlm_roberta(tokenizer_class="PreTrainedTokenizerFast", do_lower_case=True, strip_accents=None)


def bert(layers: int = 2, heads: int = 4, *, length: int = 48, lowercase: bool = False) -> Transformer:
    """Return BERT as most repositories have it."""
    return Transformer(networks.bert(layers, heads), tokenizers.wordpiece(), length=length, lowercase=lowercase)


def xlm_roberta(layers: int = 2, heads: int = 4, *, files: TokenizerFiles = _SPLIT, length: int = 48) -> Transformer:
    """Return XLM-R, whose tokenizer may state more tokens than there are positions."""
    return Transformer(networks.xlm_roberta(layers, heads), files, length=length, stated=length + 2)


def plain(name: str, first: Module) -> Published:
    """Return a repository of transformers."""
    return Published(name, (first,), plain=True)


ROWS: tuple[Published, ...] = (
    # BGE of version 1.5 lower-cases, and so does its tokenizer.
    Published("bge-small", (bert(lowercase=True), CLS, NORMALIZE), generation=2),
    Published(
        "bge-base", (bert(3, lowercase=True), CLS, NORMALIZE), generation=2, prompts={"query": prompts.FOR_PASSAGES}
    ),
    Published("bge-large", (bert(3, 8, lowercase=True), CLS, NORMALIZE), generation=2),
    Published("bge-m3", (xlm_roberta(3, files=_JOINED), CLS, NORMALIZE), generation=2),
    Published("e5-small", (bert(), MEAN, NORMALIZE), generation=2, prompts=prompts.E5),
    Published("e5-base", (bert(3), MEAN, NORMALIZE), generation=2, prompts=prompts.E5),
    Published("e5-large", (bert(3, 8), MEAN, NORMALIZE), generation=2, prompts=prompts.E5),
    Published(
        "multilingual-e5-small",
        (Transformer(networks.multilingual_bert(), _SPLIT), MEAN, NORMALIZE),
        generation=2,
        prompts=prompts.E5,
    ),
    Published("multilingual-e5-base", (xlm_roberta(), MEAN, NORMALIZE), generation=2, prompts=prompts.E5),
    Published("multilingual-e5-large", (xlm_roberta(3, 8), MEAN, NORMALIZE), generation=2, prompts=prompts.E5),
    Published(
        "multilingual-e5-large-instruct",
        (xlm_roberta(3, 8), MEAN, NORMALIZE),
        generation=2,
        prompts={"query": f"{prompts.FOR_QUERIES} "},
    ),
    Published(
        "e5-mistral",
        (
            Transformer(
                decoders.mistral(),
                tokenizers.llama(eos=True, pad_token="</s>", padding_side="left"),
                length=LONG,
                stated=UNLIMITED,
            ),
            LAST,
            NORMALIZE,
        ),
        generation=2,
        prompts=prompts.MISTRAL,
    ),
    Published("gte-base", (bert(3), MEAN, NORMALIZE), generation=2),
    Published("gte-large", (bert(3, 8), MEAN, NORMALIZE), generation=2),
    Published(
        "gte-modernbert",
        (Transformer(networks.modernbert(), tokenizers.modernbert(), length=LONG, stated=8192), CLS),
        prompts={},
        similarity="cosine",
    ),
    Published(
        "gte-qwen2",
        (
            Transformer(decoders.qwen2(), tokenizers.qwen(eos=False, add_eos_token=True), length=LONG, stated=32768),
            LAST,
            NORMALIZE,
        ),
        prompts={"query": f"{prompts.FOR_QUERIES} "},
    ),
    Published(
        "qwen3-embedding-0.6b",
        (Transformer(decoders.qwen3(2), tokenizers.qwen(eos=True), length=LONG, stated=131072), LAST, NORMALIZE),
        prompts={"query": prompts.FOR_QUERIES, "document": ""},
        similarity="cosine",
    ),
    Published(
        "qwen3-embedding-4b",
        (Transformer(decoders.qwen3(3), tokenizers.qwen(eos=True), length=LONG, stated=131072), LAST, NORMALIZE),
        prompts={"query": prompts.FOR_QUERIES, "document": ""},
        similarity="cosine",
    ),
    Published(
        "nomic-v1.5",
        (Transformer(decoders.nomic_bert(), tokenizers.wordpiece(), length=LONG, stated=8192), MEAN),
        prompts=prompts.NOMIC,
        minimum="5.5",
    ),
    Published(
        "modernbert-embed",
        (Transformer(networks.modernbert(3), tokenizers.modernbert(), length=LONG, stated=8192), MEAN, NORMALIZE),
        prompts={name: prompts.NOMIC[name] for name in ("search_query", "search_document")},
        similarity="cosine",
    ),
    Published(
        "mxbai-large",
        (bert(3, 8), CLS),
        prompts={"query": prompts.FOR_PASSAGES, "passage": ""},
        similarity="cosine",
    ),
    Published("arctic-m", (bert(3), CLS, NORMALIZE), prompts={"query": prompts.FOR_PASSAGES}),
    Published("arctic-l", (bert(3, 8), CLS, NORMALIZE), prompts={"query": prompts.FOR_PASSAGES}),
    Published(
        "arctic-l-v2",
        (xlm_roberta(3, 8, files=_JOINED), CLS, NORMALIZE),
        prompts={"query": "query: "},
        similarity="cosine",
    ),
    Published(
        "jina-v3",
        (Transformer(decoders.jina_embeddings(), _SPLIT, length=LONG, stated=8194), MEAN, NORMALIZE),
        generation=6,
        prompts=prompts.JINA,
        similarity="cosine",
        minimum="5.4",
    ),
    Published(
        "embeddinggemma",
        (
            Transformer(decoders.gemma3(), tokenizers.gemma(), length=LONG, stated=2048),
            MEAN,
            Dense(2 * SIZE, IDENTITY, bias=False),
            Dense(SIZE, IDENTITY, bias=False),
            NORMALIZE,
        ),
        prompts=prompts.GEMMA,
        similarity="cosine",
        settings={"model_type": "SentenceTransformer"},
    ),
    Published(
        "granite-r2",
        (
            Transformer(networks.modernbert(4, 80000.0), tokenizers.modernbert(), length=LONG, stated=8192),
            CLS,
            NORMALIZE,
        ),
        prompts={},
        similarity="cosine",
    ),
    Published(
        "granite-small-r2",
        (Transformer(networks.modernbert(3, 80000.0), tokenizers.modernbert(), length=LONG), CLS, NORMALIZE),
        generation=6,
        prompts={"query": "", "document": ""},
        similarity="cosine",
    ),
    Published(
        "multilingual-minilm", (Transformer(networks.multilingual_bert(), _EXPORTED, length=24), MEAN), generation=2
    ),
    Published("multilingual-mpnet", (xlm_roberta(files=_SPLIT, length=24), MEAN), generation=6, prompts={}),
    Published(
        "all-mpnet",
        (Transformer(networks.mpnet(), tokenizers.mpnet(), length=36, stated=48), MEAN, NORMALIZE),
        generation=2,
    ),
    Published(
        "labse",
        (
            Transformer(networks.bert(), tokenizers.wordpiece(lowercase=False), length=32),
            CLS,
            Dense(SIZE, pickled=True),
            NORMALIZE,
        ),
        generation=2,
    ),
    Published(
        "gtr-base",
        (
            Transformer(networks.t5_encoder(), tokenizers.t5(), length=48, stated=512),
            MEAN,
            Dense(SIZE, IDENTITY, bias=False, pickled=True),
            NORMALIZE,
        ),
        generation=2,
    ),
    Published(
        "sentence-t5",
        (
            Transformer(networks.t5_encoder(), tokenizers.t5(), length=32, stated=512),
            MEAN,
            Dense(SIZE, IDENTITY, bias=False),
            NORMALIZE,
        ),
        generation=2,
    ),
    Published(
        "instructor",
        (
            Transformer(networks.t5_encoder(), tokenizers.t5(), length=48, stated=512),
            Pooling(include_prompt=False),
            Dense(SIZE, IDENTITY, bias=False, pickled=True),
            NORMALIZE,
        ),
        generation=2,
    ),
    Published(
        "distiluse",
        (
            Transformer(
                networks.distilbert(),
                tokenizers.wordpiece(lowercase=False, tokenizer_class="DistilBertTokenizer"),
                length=24,
            ),
            MEAN,
            Dense(SIZE * 3 // 4),
        ),
        generation=2,
        settings=None,
    ),
    Published("sbert", (bert(length=32), MEAN), generation=2, settings=None),
    # Its tokenizer.json cuts at and pads to another length, as that of all-MiniLM-L6-v2.
    Published(
        "minilm",
        (Transformer(networks.bert(), tokenizers.wordpiece(truncation=16), length=24), MEAN, NORMALIZE),
        generation=2,
    ),
    plain("simcse", Transformer(networks.bert(pickled=True), _OLD)),
    plain("unsup-simcse", Transformer(networks.bert(3, pickled=True), _OLD)),
    plain("angle-bert", bert(3)),
    plain("specter", Transformer(networks.bert(3, pickled=True), _OLD)),
    plain(
        "angle-llama",
        Transformer(decoders.llama(), tokenizers.llama(eos=False, pad_token="<unk>"), stated=LONG),
    ),
    Published("potion", (StaticEmbedding(SIZE, words, "model2vec", path="."), NORMALIZE), settings=None),
    Published("static-retrieval", (StaticEmbedding(SIZE, words),), prompts={}, similarity="cosine"),
    Published("static-multilingual", (StaticEmbedding(SIZE, unigram),), prompts={}, similarity="cosine"),
    Published("static-mapped", (StaticEmbedding(SIZE, words, "model2vec-mapped", path="."), NORMALIZE), settings=None),
)
