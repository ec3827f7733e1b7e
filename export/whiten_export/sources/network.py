"""Load a network with transformers: its config, and all its weights, without code of pickles; merge adapters."""

import hashlib
import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import dynamic_module_utils

from whiten_export.sources.checkpoint import (
    ADAPTER_CONFIG,
    Checkpoint,
    adapter_weights,
    hash_tensor,
    open_tensors,
    read_settings,
)
from whiten_export.sources.checks import check_config, read_tokenizer_config, renamed_settings, rotary_kinds
from whiten_export.sources.families import family_of
from whiten_export.sources.own_code import code_files, names_in_network, other_version, restore_weights, way_to_code
from whiten_export.sources.tokenizer import missing_tokenizer, read_backend, tokenizer_missing
from whiten_runtime.errors import UsageError, WhitenError, from_clone

_LOGGERS = ("torch", "transformers", "sentence_transformers", "peft", "onnxscript", "onnx_ir")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep messages, warnings, bars and questions of torch, transformers and their like to themselves; failures raise.

    transformers asks on the terminal whether code may run, where a class that it calls was not told.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    bars, patience = transformers.logging.is_progress_bar_enabled(), dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    transformers.logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = patience
        if bars:
            transformers.logging.enable_progress_bar()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def load_config(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    """Load the config, without the attention that it asks for; refuse settings that transformers' class does not read.

    An attention may be a kernel, which transformers would fetch from the hub wherever it makes a network.
    """
    factory, settings = transformers.AutoConfig, renamed_settings(checkpoint, trust_remote_code)
    try:
        config = from_pretrained(factory, checkpoint.directory, checkpoint, trust_remote_code, **settings)
    except WhitenError:
        if "model_type" in read_settings(checkpoint.directory / "config.json"):
            raise
        kind = _type_by_weights(checkpoint.weights)
        why = f" (its weights are named {kind}.*)" if kind else ", or what its authors say it is"
        raise UsageError(
            f"{checkpoint.directory / 'config.json'}: has no model_type, which files of 2019 lack; add "
            f'"model_type": "{kind or "bert"}" to it{why}'
        ) from None
    config._attn_implementation = "eager"  # that of configs inside it too
    if type(config).__module__.startswith("transformers."):  # and not the checkpoint's own
        check_config(checkpoint, config, transformers.__version__)
    return config


def _type_by_weights(files: Iterable[Path]) -> str | None:
    """Return the architecture of transformers after which most weights of files are named; None for none."""
    first = Counter(name.split(".")[0] for file in files for name in tensor_kinds(file))
    return next((name for name, _ in first.most_common() if name in transformers.CONFIG_MAPPING), None)


def load_tokenizer(checkpoint: Checkpoint, trust_remote_code: bool) -> Any:
    """Load the tokenizer that PyTorch users of this checkpoint get, with the lower-casing that the catalogue sets."""
    for name, words in read_tokenizer_config(checkpoint).items():
        if name in ("vocab", "merges") and isinstance(words, str):
            raise WhitenError(
                f"{checkpoint.tokenizer_directory / 'tokenizer_config.json'}: {name} is the path '{words}'; wanted the "
                "tokenizer's own files beside it"
            )
    known = checkpoint.entry.lowercase if checkpoint.entry else None
    casing = {} if known is None else {"do_lower_case": known}
    try:
        return from_pretrained(
            transformers.AutoTokenizer, checkpoint.tokenizer_directory, checkpoint, trust_remote_code, **casing
        )
    except UsageError:
        raise
    except WhitenError as error:
        if tokenizer_missing(checkpoint):
            raise missing_tokenizer(checkpoint) from None
        path = checkpoint.tokenizer_directory / "tokenizer.json"
        if not path.is_file() or read_backend(path).get_vocab_size() == 0:
            raise
        raise WhitenError(
            f"{error}; if the model was trained with its tokenizer.json, write "
            '"tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json'
        ) from error


def from_pretrained(
    factory: Any, directory: Path, checkpoint: Checkpoint, trust_remote_code: bool, **options: Any
) -> Any:
    """Call `factory.from_pretrained` on local files alone."""
    try:
        with quiet():
            return factory.from_pretrained(
                directory, trust_remote_code=trust_remote_code, local_files_only=True, **options
            )
    except Exception as error:  # what is wrong with a checkpoint's files shows as errors of many packages
        reason = " ".join(str(error).split())
        if not trust_remote_code and (way := way_to_code(checkpoint, reason)):
            raise UsageError(f"'{checkpoint.model}' {way}") from error
        if "ignore_mismatched_sizes" in reason or "size mismatch" in reason:  # in the words of transformers 5 or 4
            reason = "weights have other shapes than its config.json says; copy both again"
        elif "Validation error" in reason or "validation error" in reason:
            reason += "; correct it in config.json"
        elif factory is not transformers.AutoTokenizer and _is_quantised(checkpoint):
            reason += "; or export the model that is not quantised"
        elif trust_remote_code and way_to_code(checkpoint):
            reason += other_version(read_settings(checkpoint.directory / "config.json").get("transformers_version"))
        raise WhitenError(f"transformers cannot load '{checkpoint.model}': {reason}") from error


def _is_quantised(checkpoint: Checkpoint) -> bool:
    return bool(read_settings(checkpoint.directory / "config.json").get("quantization_config"))


@contextmanager
def one_thread() -> Iterator[int]:
    """Compute every operator in the thread that calls it; yield how many threads PyTorch used before.

    Two threads wait for each other at every operator. With all-MiniLM-L6-v2 in float64 and 49 short texts, two threads
    on two busy cores took 18 to 28 s, one took 4.3 s.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of threads that begin later, too
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


_MODEL_CLASSES = {
    "CAUSAL_LM": ("ForCausalLM", "AutoModelForCausalLM"),
    "SEQ_CLS": ("ForSequenceClassification", "AutoModelForSequenceClassification"),
    "TOKEN_CLS": ("ForTokenClassification", "AutoModelForTokenClassification"),
}
"""For each task of an adapter, the suffix and the class of the model it was trained on, which determine its keys."""


def adapter_model_class(adapter: Path, otherwise: str) -> str:
    """Return the name of the transformers class that an adapter's weights fit."""
    config = read_settings(adapter / ADAPTER_CONFIG)
    trained_on = str((config.get("auto_mapping") or {}).get("base_model_class"))  # set where there is no task
    for task, (ending, model_class) in _MODEL_CLASSES.items():
        if config.get("task_type") == task or trained_on.endswith(ending):
            return model_class
    return otherwise


_WORD_TABLE = re.compile(r"\.(embed_tokens|word_embeddings|wte|tok_embeddings|shared)\.(.*\.)?weight$")
"""Names of word embeddings among an adapter's weights."""


def adapter_rows(adapter: Path | None) -> int:
    """Return the rows of the word embeddings that an adapter has whole, as where its vocabulary is another; else 0."""
    file = None if adapter is None else adapter_weights(adapter)
    if file is None or file.suffix != ".safetensors":
        return 0
    tensors = open_tensors(file)
    tables = filter(_WORD_TABLE.search, tensors.keys())
    return max((tensors.get_slice(key).get_shape()[0] for key in tables), default=0)


def grown_note(checkpoint: Checkpoint, rows: int, before: int) -> str | None:
    """Return what is said of an adapter with more tokens than its base, if it has no tokenizer that knows them."""
    if rows <= before or checkpoint.tokenizer_directory != checkpoint.directory:
        return None
    return (
        f"the adapter has word embeddings of {rows:,} tokens, its base of {before:,}, and the base's tokenizer, which "
        "is used, reads the further tokens as other words: copy the adapter's own tokenizer into its folder"
    )


def merge_adapter(network: nn.Module, adapter: Path, digest: "hashlib._Hash") -> nn.Module:
    """Return the network with the adapter's products added to its weights, without the head of its task.

    The adapter's parameters are added to `digest`: the sums' last bits differ between processors.
    """
    try:
        from peft import PeftModel
    except ImportError:
        raise WhitenError(f"merging a LoRA adapter needs peft; install it {from_clone('lora')}") from None
    rows = adapter_rows(adapter)
    if rows not in (0, network.config.vocab_size):  # type: ignore[union-attr]
        with quiet():  # the adapter has all rows; peft does not make room for them
            network.resize_token_embeddings(rows, mean_resizing=False)  # type: ignore[operator]
    base = set(network.parameters())
    try:
        with quiet(), explaining(filter(None, [adapter_weights(adapter)])):
            # peft leaves weights that an adapter lacks at zero, with a warning.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            loaded = PeftModel.from_pretrained(network, str(adapter))
    except WhitenError:
        raise
    except Exception as error:  # peft's exceptions share no base class
        reason = " ".join(str(error).split())[:300]
        raise WhitenError(f"{adapter}: the adapter does not fit the model that it names ({reason})") from error
    if not hasattr(loaded, "merge_and_unload"):
        kind = read_settings(adapter / ADAPTER_CONFIG).get("peft_type")
        raise WhitenError(f"{adapter}: holds {kind}, which is not merged; wanted LoRA")
    _add_parameters(digest, (parameter for parameter in loaded.parameters() if parameter not in base))
    with quiet():
        merged = loaded.merge_and_unload()
    inner = getattr(merged, "base_model", merged)
    assert isinstance(inner, nn.Module)
    return inner


UNUSED = re.compile(r"^(pooler|lm_head|score|classifier)\.")
"""Names of weights that no hidden state depends on."""

_HEADS = re.compile(
    r"^(pooler|lm_head|score|(pre_)?classifier|classification_head|qa_outputs|cls|head|mlm_head|decoder|logit_scale"
    r"|(sparse|colbert)_linear|vocab_(transform|layer_norm|projector)|(generator_|discriminator_|lm_|mask_)?predictions"
    r"|generator_lm_head)(\.|$)"
)
"""Names of weights of heads in checkpoints with code of their own, whose other weights may come behind the states."""

_BUFFERS = re.compile(
    r"(^|\.)(position_ids|inv_freq|masked_bias|token_type_ids|attn(\.attention)?\.bias|relative_position_bucket)$"
)
"""Names of constants that older checkpoints stored among the weights."""


_ENCODER = re.compile(r"\w+Encoder(Model)?")
"""Classes of encoders, such as DPRContextEncoder and M2M100Encoder, which `AutoModel` makes for some architectures."""


def _written_by(config: Any) -> str:
    """Return the class that wrote a config, by the first of its `architectures`; "" where it names none."""
    classes = config.architectures
    first = classes[0] if isinstance(classes, list) and classes else None
    return first if isinstance(first, str) else ""


def network_class(checkpoint: Checkpoint, config: Any) -> Any:
    """Return the class of transformers that a checkpoint is loaded by: the one that wrote it, if that is an encoder."""
    name = family_of(config.model_type).model_class
    if checkpoint.adapter is not None:
        return getattr(transformers, adapter_model_class(checkpoint.adapter, name))
    written_by, module = _written_by(config), type(config).__module__
    if module.startswith("transformers.") and _ENCODER.fullmatch(written_by):
        own = getattr(import_module(module.replace(".configuration_", ".modeling_")), written_by, None)
        if own is not None:
            return own
    return getattr(transformers, name)


def unknown_class_note(checkpoint: Checkpoint, config: Any) -> str | None:
    """Return what is said of a config that names a class which neither transformers nor the checkpoint has."""
    name = _written_by(config)
    own = code_files(checkpoint) or checkpoint.entry
    if not name or own or {name, name.removeprefix("TF").removeprefix("Flax")} & {*dir(transformers)}:
        return None
    return (
        f"config.json names the class {name}, which transformers {transformers.__version__} does not have: "
        f"{config.model_type} is computed as transformers computes it, which may be otherwise, such as without "
        "attention to later tokens"
    )


def expert_bytes(config: Any) -> int:
    """Return the bytes of the weights of experts that a graph of a mixture of experts gathers for each token."""
    chosen, width = getattr(config, "num_experts_per_tok", None), getattr(config, "moe_intermediate_size", None)
    width = width or getattr(config, "intermediate_size", None)
    return 4 * 3 * chosen * width * config.hidden_size if isinstance(chosen, int) and isinstance(width, int) else 0


def experts_note(size: int) -> str | None:
    """Return what is said of a mixture of experts, whose graph gathers `size` bytes of weights for each token."""
    if not size:
        return None
    return (
        f"it is a mixture of experts: each token takes copies of its experts' weights, {size / 1e6:,.1f} MB, so that a "
        f"text of 512 tokens takes {512 * size / 1e9:,.1f} GB while a block is computed; int8 leaves them in float32"
    )


def load_network(
    checkpoint: Checkpoint, config: Any, trust_remote_code: bool, pooler: bool = False
) -> tuple[nn.Module, str]:
    """Load the weights in float32, in inference mode; merge those of a LoRA adapter into its base.

    Returns the network, and the SHA-256 of its parameters and of the adapter's, whatever files they come from.
    """
    with explaining(checkpoint.weights), _naming_rotary(checkpoint, config):
        loaded = from_pretrained(
            network_class(checkpoint, config),
            checkpoint.directory,
            checkpoint,
            trust_remote_code,
            config=config,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    if not isinstance(loaded, tuple):  # of a `from_pretrained` of its own, as nomic's
        raise WhitenError(
            f"'{checkpoint.model}': its own code ({type(loaded).__name__}) loads weights in a way of its own, and does "
            "not say which are missing, which is not supported; leave --trust-remote-code out where transformers has "
            f"the architecture ({config.model_type})"
        )
    network, report = loaded
    if not isinstance(network, nn.Module):
        raise WhitenError(f"'{checkpoint.model}' loads as {type(network).__name__}; wanted a PyTorch module")
    way = None if trust_remote_code else way_to_code(checkpoint)
    _check_weights(checkpoint, config.model_type, network, report, pooler, way)
    optional = [UNUSED, *map(re.compile, getattr(network, "_keys_to_ignore_on_load_missing", None) or ())]
    unread = [
        name
        for name in restore_weights(network, checkpoint.weights)
        if name not in report["missing_keys"]
        and ((pooler and name.startswith("pooler.")) or not any(pattern.search(name) for pattern in optional))
    ]
    if unread:
        raise WhitenError(
            f"{checkpoint.directory}: its own code has {len(unread)} weights, such as '{unread[0]}', that its files "
            f"have by another name; transformers {transformers.__version__} may have put random numbers into them: "
            "use a repository of the model whose code is for transformers 5"
        )
    check_numbers(network, checkpoint.weights, optional)
    used = [value for name, value in network.named_parameters() if pooler or not UNUSED.search(name)]
    digest = hashlib.sha256()
    _add_parameters(digest, used)
    if checkpoint.adapter is not None:
        network = merge_adapter(network, checkpoint.adapter, digest)
        check_numbers(network, [checkpoint.adapter], optional)
    return network.eval().requires_grad_(False), digest.hexdigest()


def _add_parameters(digest: "hashlib._Hash", parameters: Iterable[nn.Parameter]) -> None:
    """Add parameters in the order of the network's modules."""
    for parameter in parameters:
        content = memoryview(parameter.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        hash_tensor(digest, parameter.shape, content)


@contextmanager
def _naming_rotary(checkpoint: Checkpoint, config: Any) -> Iterator[None]:
    """Say which setting is at fault, if transformers has no rotary embeddings of the kind that a config names."""
    try:
        yield
    except WhitenError as error:
        unknown = str(error.__cause__).strip("'")
        if not isinstance(error.__cause__, KeyError) or unknown not in rotary_kinds(config):
            raise
        way = way_to_code(checkpoint)
        raise WhitenError(
            f"{checkpoint.directory / 'config.json'}: the type of rope_scaling (or rope_parameters) is '{unknown}', "
            f"which transformers {transformers.__version__} does not know for a {config.model_type} network; "
            + (f"the checkpoint {way}" if way else "use a version that does, or a repository of the model made for it")
        ) from error.__cause__


def _check_weights(
    checkpoint: Checkpoint, kind: str, network: nn.Module, report: Any, pooler: bool, way: str | None
) -> None:
    """Check that the network has all weights that hidden states depend on, and that none of the checkpoint is left.

    `way` says how code that comes with the checkpoint would be run in place of transformers' class, if there is any.
    """
    missing = sorted(
        name for name in report["missing_keys"] if not UNUSED.search(name) or (pooler and name.startswith("pooler."))
    )
    if missing:
        raise WhitenError(
            f"{checkpoint.directory}: {len(missing)} weights are missing, such as '{missing[0]}'; "
            + (f"the checkpoint {way}" if way else f"this is not a complete {kind} checkpoint")
        )
    parts, own_code = (
        {name for name, _ in network.named_children()},
        way and "AutoModel" in code_files(checkpoint),
    )
    prefix = f"{getattr(network, 'base_model_prefix', '')}."
    surplus = sorted(
        name
        for name in report["unexpected_keys"]
        if ((inner := name.removeprefix(prefix)).split(".")[0] in parts or (own_code and not _HEADS.search(inner)))
        and not _BUFFERS.search(inner)
        and (pooler or not UNUSED.search(inner))
    )
    if surplus:
        raise WhitenError(
            f"{checkpoint.directory}: transformers {transformers.__version__} does not take {len(surplus)} weights of "
            f"this {kind} network, such as '{surplus[0]}', so it would compute other vectors; "
            + (f"the checkpoint {way}" if way else "use a version that does")
        )


_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def load_state(path: Path) -> dict[str, Tensor]:
    """Load a file of PyTorch weights without their numbers, which leaves names and types; no code of it runs."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return dict(torch.load(path, map_location="meta", weights_only=True).items())
    except Exception as error:  # torch.load's exceptions share no base class
        raise WhitenError(f"{path}: {_refusal(error)}") from None


@contextmanager
def explaining(files: Iterable[Path]) -> Iterator[None]:
    """Say which of several weight files is at fault, if loading them in the block fails by one of them."""
    try:
        yield
    except Exception:
        for path in sorted(files):
            if path.suffix == ".bin":
                load_state(path)
            elif path.suffix == ".safetensors":
                open_tensors(path)
        raise


def tensor_kinds(path: Path) -> dict[str, str]:
    """Return the type of every tensor in a file of weights, such as F32 and INT8; none for another file."""
    if path.suffix == ".bin":
        state = load_state(path)
        tensors = {key: one for key, one in state.items() if isinstance(one, Tensor)}
        return {key: str(one.dtype).removeprefix("torch.").upper() for key, one in tensors.items()}
    if path.suffix != ".safetensors":
        return {}
    file = open_tensors(path)
    return {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118


_WEIGHT_TYPES = frozenset(("F64", "F32", "F16", "BF16", "FLOAT64", "FLOAT32", "FLOAT16", "BFLOAT16"))
"""Types of weights that are their numbers themselves, as safetensors and PyTorch name them."""


def _scales_of(key: str) -> tuple[str, ...]:
    """Return the names that the scales of a weight have beside it, which loading multiplies it by."""
    return f"{key}_scale", f"{key}_scale_inv"


def check_numbers(network: nn.Module, files: Sequence[Path], optional: Sequence[re.Pattern[str]] = ()) -> None:
    """Check that all weights are finite, and that none is stored in a type that needs a scale, which loading converts.

    Optional weights that no file has are left out: code may leave them as memory was.
    """
    parameters = dict(network.named_parameters())
    prefix = f"{getattr(network, 'base_model_prefix', '')}."
    places = dict[str, str]()
    kinds_of = {file: tensor_kinds(file) for file in files}
    keys = {key for kinds in kinds_of.values() for key in kinds}
    for file, kinds in kinds_of.items():
        for key, kind in kinds.items():
            for name in names_in_network(key, prefix) & parameters.keys():
                if kind not in _WEIGHT_TYPES and not (kind.startswith("F") and keys & {*_scales_of(key)}):
                    raise WhitenError(
                        f"{file}: '{key}' holds {kind}, without a scale that says what its numbers stand for; wanted "
                        "weights of 16, 32 or 64 bits: export the model that is not quantised"
                    )
                places[name] = f"{file}: '{key}'"
    for name, parameter in parameters.items():
        if _is_finite(parameter.detach()):
            continue
        place = places.get(name)
        if place is None and any(pattern.search(name) for pattern in optional):
            continue
        at = place or f"{files[0] if len(files) == 1 else files[0].parent}: '{name}'"
        raise WhitenError(f"{at} holds NaN or infinity; copy the model again, or use another checkpoint of it")


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite, by the smallest and the largest: `isfinite` takes 1.5 times the memory."""
    return not tensor.numel() or all(math.isfinite(bound.item()) for bound in tensor.aminmax())


def _refusal(error: Exception) -> str:
    """Return what is wrong with a file; torch's own words tell how to run what is in it."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror}); check its permissions"
    if match := _GLOBAL.search(str(error)):
        return (
            f"holds more than weights: {match[1]}, which could do anything when it is read; wanted tensors alone, such "
            "as in a file of safetensors"
        )
    return "is damaged, or no file of PyTorch weights; copy the model again, or use one with safetensors"
