"""Register the differences between architectures, keyed by transformers' `model_type`.

An architecture that is not listed is loaded by `AutoModel` and traced like the others; the parity gate decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """Facts about an architecture that its config does not contain."""

    model_class: str = "AutoModel"  # class of transformers whose `hidden_states` are those of the encoder
    # setting that holds the width of the last states; where the network projects them, no layer below is exported
    width: str = "hidden_size"
    supported: bool = True  # whether the tests export a network of this architecture
    # a token's first hidden state depends on its neighbours' word embeddings. Those of padding must then be
    # zeros, so that a vector does not depend on padding
    mixes_embeddings: bool = False
    # further arguments of its forward pass. Inputs that are not listed are left to the model, which takes token
    # types, boxes and languages as zeros inside the graph
    arguments: Mapping[str, Any] = field(default_factory=dict)


_ENCODER = Family()
_UNKNOWN = Family(supported=False)
_DECODER = Family(arguments={"use_cache": False})

FAMILIES = {
    "albert": _ENCODER,
    "bert": _ENCODER,
    "camembert": _ENCODER,
    "deberta": _ENCODER,
    "distilbert": _ENCODER,
    "electra": _ENCODER,
    "embedding_gemma2_text": Family(width="embedding_dim"),
    "eurobert": _ENCODER,
    "gemma3_text": _DECODER,
    "gpt2": _DECODER,
    "gte": _ENCODER,
    "jina_embeddings_v3": _ENCODER,
    "layoutlm": _ENCODER,
    "lfm2": _DECODER,
    "llama": _DECODER,
    "ministral3": _DECODER,
    "mistral": _DECODER,
    "mobilebert": Family(mixes_embeddings=True),
    "modernbert": _ENCODER,
    "mpnet": _ENCODER,
    "mt5": Family(model_class="MT5EncoderModel", supported=False),
    "nomic_bert": _ENCODER,
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "qwen3_moe": _DECODER,
    "roberta": _ENCODER,
    "squeezebert": _ENCODER,
    "t5": Family(model_class="T5EncoderModel"),
    "umt5": Family(model_class="UMT5EncoderModel", supported=False),
    "xlm": _ENCODER,
    "xlm-roberta": _ENCODER,
}


def family_of(model_type: str) -> Family:
    """Return the registry's entry, or one that makes no assumption."""
    return FAMILIES.get(model_type, _UNKNOWN)


_AFTER_PAD = frozenset(
    (
        *(
            "camembert",
            "data2vec-text",
            "ernie_m",
            "ibert",
            "layoutlmv3",
            "lilt",
            "longformer",
            "luke",
            "markuplm",
            "mpnet",
            "roberta",
        ),
        *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    )
)
"""Architectures of transformers whose position ids start behind the id of the padding token."""


def positions_before(config: Any) -> int:
    """Return the number of positions before that of the first token; a network itself tells it for sure."""
    return (config.pad_token_id or 0) + 1 if config.model_type in _AFTER_PAD else 0


def usable_positions(config: Any, before: int) -> int | None:
    """Return the number of tokens that a config states positions for; None if it does not say."""
    positions = getattr(config, "max_position_embeddings", None)
    return None if positions is None or positions < 1 else int(positions) - before


@dataclass(frozen=True)
class BatchLimit:
    """Network that computes the texts of a batch in another way where one is longer than a limit."""

    why: str  # what does it, for messages
    tokens: int  # number of tokens up to which texts are always computed in the same way


_ORIGINAL = "original_max_position_embeddings"

SCALED_BY_LENGTH = ("dynamic", "longrope", "su")
"""Kinds of rotary embeddings in transformers that compute frequencies anew for long batches; "su" is longrope's former
name. Those of the others ("linear", "yarn", "llama3", "proportional") never change."""


_BLOCKS = 'block-sparse attention (with "attention_type": "original_full" in its config.json it has no such limit)'


def batch_limit(config: Any) -> BatchLimit | None:
    """Return the limit of a config's rotary embeddings or block-sparse attention; None for no such."""
    if getattr(config, "attention_type", None) == "block_sparse":  # up to so many blocks, each token sees all others
        blocks = 5 + 2 * config.num_random_blocks
        return BatchLimit(_BLOCKS, blocks * config.block_size)
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    positions = getattr(config, "max_position_embeddings", None)
    for each in (settings, *settings.values()):  # some architectures have one for each type of layer
        kind = (each.get("rope_type") or each.get("type")) if isinstance(each, Mapping) else None
        if kind not in SCALED_BY_LENGTH:
            continue
        stated = (getattr(config, _ORIGINAL, None), each.get(_ORIGINAL))
        unscaled = next((length for length in stated if length and kind != "dynamic"), positions)
        return None if unscaled is None else BatchLimit(f"rope scaling ({kind})", int(unscaled))
    return None
