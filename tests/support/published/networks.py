"""Networks of published models: small ones, with everything else as their config.json has it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.checkpoints import random_network
from support.sizes import MAX_LENGTH, WIDTH
from support.vocabularies import Vocabulary

WIDENED = 2
SIZE = WIDENED * WIDTH
"""Width of the hidden states, and of the feed-forward layers."""

_BERT_IDS = {"pad_token_id": "[PAD]"}
_FAIRSEQ_IDS = {"pad_token_id": "<pad>", "bos_token_id": "<s>", "eos_token_id": "</s>"}


@dataclass(frozen=True)
class Network:
    """A network of random weights.

    Attributes:
        config: content of config.json, besides the vocabulary's size, the type of the numbers and `ids`.
        ids: settings of the config that hold a token's id.
        saved_as: class of transformers whose weights are saved.
        unused: ids that the embeddings have besides the vocabulary's.
        noise: standard deviation of what is added to every parameter.
        dtype: of the saved weights.
        pickled: whether they are in pytorch_model.bin.
        shard: size of the largest file of weights.
    """

    config: Mapping[str, Any]
    ids: Mapping[str, str]
    saved_as: str = "AutoModel"
    unused: int = 0
    noise: float = 0.3
    dtype: str = "float32"
    pickled: bool = False
    shard: str = "1GB"

    def save(self, directory: Path, vocabulary: Vocabulary, seed: int) -> None:
        """Write config.json and the weights."""
        import torch
        import transformers

        ids = {setting: vocabulary[token] for setting, token in self.ids.items()}
        kind = {"torch_dtype": self.dtype, "transformers_version": "4.44.2"}
        config = {**self.config, **ids, **kind, "vocab_size": len(vocabulary) + self.unused}
        stated = json.dumps(dict(sorted(config.items())), indent=2)
        (directory / "config.json").write_text(stated, "utf-8")
        read = transformers.AutoConfig.from_pretrained(directory)
        network = random_network(read, self.saved_as, noise=self.noise, widened=WIDENED, seed=seed)
        network = network.to(getattr(torch, self.dtype))
        network.save_pretrained(directory, max_shard_size=self.shard)
        (directory / "config.json").write_text(stated, "utf-8")  # of whatever version of transformers this is
        if self.pickled:
            (directory / "model.safetensors").unlink()
            torch.save(network.state_dict(), directory / "pytorch_model.bin")


_BERT = {
    "hidden_act": "gelu",
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": MAX_LENGTH,
    "model_type": "bert",
    "type_vocab_size": 2,
}


def bert(layers: int = 2, heads: int = 4, pickled: bool = False, dtype: str = "float32", **config: Any) -> Network:
    """Return BERT, with its pooler."""
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads}
    all_config = {"architectures": ["BertModel"], **_BERT, **sizes, **config}
    return Network(all_config, _BERT_IDS, pickled=pickled, dtype=dtype)


def multilingual_bert(layers: int = 2, heads: int = 4) -> Network:
    """Return BERT with the vocabulary of XLM-R."""
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads}
    config = {"architectures": ["BertModel"], **_BERT, **sizes, "tokenizer_class": "XLMRobertaTokenizer"}
    return Network(config, {"pad_token_id": "<s>"})


def xlm_roberta(layers: int = 2, heads: int = 4) -> Network:
    """Return XLM-R, whose positions begin after the pad id."""
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "max_position_embeddings": MAX_LENGTH + 2}
    config = {"architectures": ["XLMRobertaModel"], **_BERT, **sizes, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
    return Network({**config, "model_type": "xlm-roberta"}, _FAIRSEQ_IDS)


def mpnet(layers: int = 2) -> Network:
    """Return MPNet."""
    config = {setting: value for setting, value in _BERT.items() if setting != "type_vocab_size"} | {
        "architectures": ["MPNetForMaskedLM"],
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": MAX_LENGTH + 2,
        "model_type": "mpnet",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "relative_attention_num_buckets": 32,
    }
    return Network(config, _FAIRSEQ_IDS)


def distilbert(layers: int = 2) -> Network:
    """Return DistilBERT."""
    config = {
        "activation": "gelu",
        "architectures": ["DistilBertModel"],
        "dim": SIZE,
        "hidden_dim": SIZE,
        "max_position_embeddings": MAX_LENGTH,
        "model_type": "distilbert",
        "n_heads": 4,
        "n_layers": layers,
    }
    return Network(config, _BERT_IDS)


def t5_encoder(layers: int = 2) -> Network:
    """Return the encoder of T5, with the config of both halves."""
    config = {
        "architectures": ["T5EncoderModel"],
        "d_ff": SIZE,
        "d_kv": 8,
        "d_model": SIZE,
        "feed_forward_proj": "relu",
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06,
        "model_type": "t5",
        "n_positions": 512,
        "num_decoder_layers": layers,
        "num_heads": 4,
        "num_layers": layers,
        "relative_attention_max_distance": 32,
        "relative_attention_num_buckets": 16,
    }
    ids = {"pad_token_id": "<pad>", "eos_token_id": "</s>", "decoder_start_token_id": "<pad>"}
    return Network(config, ids, saved_as="T5EncoderModel", unused=28)


def modernbert(layers: int = 4, theta: float = 160000.0) -> Network:
    """Return ModernBERT: every third block attends to everything, the others to what is near."""
    config = {
        "architectures": ["ModernBertModel"],
        "global_attn_every_n_layers": 3,
        "global_rope_theta": theta,
        "hidden_activation": "gelu",
        "hidden_size": SIZE,
        "intermediate_size": SIZE,
        "layer_norm_eps": 1e-05,
        "local_attention": 16,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "model_type": "modernbert",
        "norm_eps": 1e-05,
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
    }
    ids = {"pad": "[PAD]", "bos": "[CLS]", "cls": "[CLS]", "eos": "[SEP]", "sep": "[SEP]"}
    return Network(config, {f"{name}_token_id": token for name, token in ids.items()})
