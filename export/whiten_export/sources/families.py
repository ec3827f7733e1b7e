"""Register the differences between architectures, keyed by transformers' `model_type`.

An architecture that is not listed is loaded by `AutoModel` and traced like the others; the parity gate decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """Describes facts about an architecture that its config does not contain."""

    model_class: str = "AutoModel"  # class of transformers whose `hidden_states` are those of the encoder
    supported: bool = True  # whether the tests export a network of this architecture
    positions_after_pad: bool = False  # position ids start at the pad id + 1, so that many positions cannot be used
    # a token's first hidden state depends on its neighbours' word embeddings. Those of padding must then be
    # zeros, so that a vector does not depend on padding
    mixes_embeddings: bool = False
    # further arguments of its forward pass. Inputs that are not listed are left to the model, which takes token
    # types, boxes and languages as zeros inside the graph
    arguments: Mapping[str, Any] = field(default_factory=dict)


_ENCODER = Family()
_AFTER_PAD = Family(positions_after_pad=True)
_UNKNOWN = Family(supported=False)
_DECODER = Family(arguments={"use_cache": False})

FAMILIES = {
    "albert": _ENCODER,
    "bert": _ENCODER,
    "camembert": _AFTER_PAD,
    "deberta": _ENCODER,
    "distilbert": _ENCODER,
    "electra": _ENCODER,
    "gemma3_text": _DECODER,
    "gpt2": _DECODER,
    "jina_embeddings_v3": _ENCODER,
    "layoutlm": _ENCODER,
    "llama": _DECODER,
    "mistral": _DECODER,
    "mobilebert": Family(mixes_embeddings=True),
    "modernbert": _ENCODER,
    "mpnet": _AFTER_PAD,
    "mt5": Family(model_class="MT5EncoderModel", supported=False),
    "nomic_bert": _ENCODER,
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "roberta": _AFTER_PAD,
    "squeezebert": _ENCODER,
    "t5": Family(model_class="T5EncoderModel"),
    "umt5": Family(model_class="UMT5EncoderModel", supported=False),
    "xlm": _ENCODER,
    "xlm-roberta": _AFTER_PAD,
}


def family_of(model_type: str) -> Family:
    """Return the registry's entry, or one that makes no assumption."""
    return FAMILIES.get(model_type, _UNKNOWN)


def usable_positions(config: Any) -> int | None:
    """Return the number of tokens that a config's position embeddings have room for; None if it does not say."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < 1:
        return None
    if family_of(config.model_type).positions_after_pad:
        positions -= (config.pad_token_id or 0) + 1
    return int(positions)
