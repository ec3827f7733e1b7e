"""Say which Python code comes with a checkpoint and where it lies, and give its network what transformers 5 takes away.

Code runs only with `--trust-remote-code`, by transformers. As transformers 5 loads its network, weights are replaced by
random numbers, where the code's `_init_weights` writes them, and constants are lost.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from whiten_export.sources.checkpoint import Checkpoint, read_settings
from whiten_runtime.bundle.manifest import Source
from whiten_runtime.errors import WhitenError, parse_whole

if TYPE_CHECKING:
    from torch import Tensor, nn


_OTHER = "--"
"""Separator between the id of a repository and the name of a class that lies there."""


def code_files(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the files of a checkpoint's own code, by the class of transformers in whose place the code runs.

    They are named "own.py", or "ORG/NAME--own.py" in another repository; the classes are AutoConfig, AutoModel and
    AutoTokenizer.
    """
    files = dict(_mapped(checkpoint.tokenizer_directory / "tokenizer_config.json", ("AutoTokenizer",)))
    if checkpoint.kind == "transformers":
        files |= _mapped(checkpoint.directory / "config.json", ("AutoConfig", "AutoModel"))
    return files


def _mapped(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the names for which a file's `auto_map` has code, and the file of the code."""
    mapped = read_settings(path).get("auto_map") if path.is_file() else None
    if isinstance(mapped, list):  # of a tokenizer, in older files
        mapped = {"AutoTokenizer": mapped}
    for name, place in mapped.items() if isinstance(mapped, dict) else ():
        places = place if isinstance(place, list) else [place]  # of a tokenizer: the slow class, and the fast one
        reference = next((each for each in reversed(places) if isinstance(each, str) and "." in each), None)
        if name in names and reference is not None:
            yield name, f"{reference.rpartition('.')[0]}.py"


def split_repository(file: str) -> tuple[str | None, str]:
    """Return the repository in which a file of code lies, None for the checkpoint's own folder, and the file's name."""
    repository, _, name = file.rpartition(_OTHER)
    return repository or None, name


def code_repositories(checkpoint: Checkpoint) -> list[str]:
    """Return the other repositories in which code of a checkpoint lies."""
    files = code_files(checkpoint).values()
    return sorted({repository for repository, _ in map(split_repository, files) if repository})


def imported_files(checkpoint: Checkpoint, references: Collection[str]) -> Iterator[Path]:
    """Yield the files of classes such as "modeling.Model" or "ORG/NAME--modeling.Model", and those they import.

    Files that are not there are left to transformers, which refuses to load the network.
    """
    from transformers import dynamic_module_utils

    for reference in references:
        repository, place = split_repository(reference)
        path = checkpoint.directory / f"{place.rpartition('.')[0]}.py"
        with suppress(OSError):
            if repository is not None:
                commit = checkpoint.code.get(repository)
                copied = dynamic_module_utils.get_cached_module_file(
                    repository, path.name, revision=commit, local_files_only=True
                )
                path = Path(dynamic_module_utils.HF_MODULES_CACHE, copied)
            yield from (path, *map(Path, dynamic_module_utils.get_relative_import_files(path)))


def code_that_ran(checkpoint: Checkpoint, runs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of the code that runs in place of classes of transformers, such as "AutoModel".

    They are named "own.py", or "ORG/NAME@COMMIT/own.py" in another repository.
    """
    files = (split_repository(file) for name, file in code_files(checkpoint).items() if name in runs)
    places = {repository: f"{repository}@{commit}/" for repository, commit in checkpoint.code.items()}
    return tuple(sorted({f"{places[repository] if repository else ''}{name}" for repository, name in files}))


def ignored_code(checkpoint: Checkpoint, runs: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the files of a checkpoint's own code that are not run; `runs` is as for `code_that_ran`.

    Models of the catalogue are known to be right without such code, and have none here.
    """
    if checkpoint.entry is not None:
        return ()
    return tuple(sorted({file for name, file in code_files(checkpoint).items() if name not in runs}))


def code_notes(checkpoint: Checkpoint, record: Source, trust_remote_code: bool) -> tuple[str, ...]:
    """Return what an export says of a checkpoint's own code that was not run; nothing without such code."""
    if not record.ignored_code:
        return ()
    could_run = checkpoint.kind == "transformers" and not trust_remote_code
    hint = ", which may be others: read the code, and run it with --trust-remote-code" if could_run else ""
    return (
        f"{checkpoint.name} has Python code of its own that was not run: {', '.join(record.ignored_code)}; its vectors "
        f"here are those of transformers' classes{hint}",
    )


def way_to_code(checkpoint: Checkpoint, reason: str = "") -> str | None:
    """Return where a checkpoint's own code lies and how it is run, for messages; None without any.

    `reason` is why transformers cannot load it, which may be code that another file than usual names.
    """
    files = sorted(set(code_files(checkpoint).values()))
    if not files and "trust_remote_code" not in reason:
        return None
    others = code_repositories(checkpoint)
    places = {checkpoint.directory, checkpoint.tokenizer_directory}
    absent = [name for name in files if not any((place / name).is_file() for place in places)]
    if absent and not others and checkpoint.hub_id is None:
        return f"names Python code of its own that is not in its folder ({', '.join(absent)}); copy the model again"
    where = f"in the repository {' and '.join(others)}" if others else f"in its folder: {', '.join(files) or '*.py'}"
    return f"comes with Python code of its own ({where}); read it, then allow it with --trust-remote-code"


def other_version(stated: object) -> str:
    """Return what is said of own code that fails, by the version of transformers that a config was written by."""
    major = parse_whole(str(stated).partition(".")[0])
    if major is None or major >= 5:
        return ""
    return (
        f"; its own code may be for transformers {stated}, which wrote config.json, and {version('transformers')} is "
        "installed: use a repository of the model whose code is for transformers 5"
    )


_OWN_CODE = "transformers_modules."
"""Package into which transformers imports a checkpoint's own code."""


_RENAMED = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}
"""Ends of names in files, those of TensorFlow and of older versions of PyTorch, and what transformers makes of them."""


def restore_weights(network: "nn.Module", files: Collection[Path]) -> tuple[str, ...]:
    """Write the stored weights once more into a network of own code; return the weights that no file has by their name.

    transformers 5 calls `_init_weights` of the code after it has loaded the weights. Code that writes to `weight.data`
    then replaces them: all of them before 5.13, and those of modules with a constant that is not stored since.
    """
    import torch

    if not is_own_code(network):
        return ()
    prefix = f"{getattr(network, 'base_model_prefix', '')}."
    wanted = network.state_dict(keep_vars=True)
    written = set()
    with torch.no_grad():
        for file in files:
            for key, stored in _tensors(file):
                for name in names_in_network(key, prefix) & wanted.keys():
                    weight = wanted[name]
                    written.add(id(weight))
                    if not torch.equal(weight, stored := stored.to(weight.device, weight.dtype)):
                        weight.copy_(stored)
    return tuple(name for name, weight in network.named_parameters() if id(weight) not in written)


def names_in_network(key: str, prefix: str) -> set[str]:
    """Return the names by which a network may have a weight of a file, which may be of another time."""
    for old, new in _RENAMED.items():
        if key.endswith(old):
            key = key.removesuffix(old) + new
            break
    return {key, key.removeprefix(prefix), prefix + key}


def is_own_code(network: "nn.Module") -> bool:
    """Return whether a network is of a class that comes with the checkpoint."""
    return type(network).__module__.startswith(_OWN_CODE)


def _tensors(file: Path) -> Iterator[tuple[str, "Tensor"]]:
    """Yield the tensors of a file of weights with their names."""
    import torch

    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                yield name, opened.get_tensor(name)
    else:
        yield from torch.load(file, map_location="cpu", weights_only=True).items()


def restore_buffers(network: "nn.Module") -> None:
    """Compute the constants of a network's own code that no file stores, such as frequencies of rotary embeddings.

    transformers 5 makes a network without memory before it loads weights. Buffers that are not stored
    (`persistent=False`) then have any numbers; it computes only those of its own classes anew.

    Raises:
        WhitenError: the network cannot be made a second time.
    """
    if not is_own_code(network) or not any(_constants(network)):
        return
    try:
        with _without_parameters():
            made = type(network)(deepcopy(network.config))
        computed = {(name, key): buffer for name, key, _, buffer in _constants(made)}
        for name, key, module, buffer in list(_constants(network)):
            module._buffers[key] = computed[name, key].to(buffer.device, buffer.dtype).reshape(buffer.shape)
    except Exception as error:  # from unknown code
        raise WhitenError(
            f"{type(network).__name__} has constants that its files do not store, and transformers loses them; they "
            f"cannot be computed anew: {type(error).__name__} {' '.join(str(error).split())[:200]}"
        ) from error


def _constants(network: "nn.Module") -> Iterator[tuple[str, str, "nn.Module", "Tensor"]]:
    """Yield the buffers that no file stores: the name of the module, that of the buffer, the module, the buffer."""
    for name, module in network.named_modules():
        for key in sorted(module._non_persistent_buffers_set):
            if (buffer := module._buffers.get(key)) is not None:
                yield name, key, module, buffer


@contextmanager
def _without_parameters() -> Iterator[None]:
    """Let modules that are made have parameters without memory, and buffers with their numbers."""
    from torch import nn

    register = nn.Module.register_parameter

    def register_shape(module: "nn.Module", name: str, parameter: "nn.Parameter | None") -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    made: Any = register_shape
    nn.Module.register_parameter = made  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
