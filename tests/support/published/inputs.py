"""Modules with which a folder can begin in place of a network: tables of vectors, and routes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from support.published.modules import (
    Module,
    Place,
    class_name,
    class_path,
    random_tensors,
    save_tensors,
    write_json,
)


@dataclass(frozen=True)
class StaticEmbedding:
    """A vector for each token.

    Attributes:
        width: of the vectors.
        tokenizer: makes the tokenizer, whose special tokens are not used.
        layout: `sentence-transformers`; or `model2vec`, with its config.json; or `model2vec-mapped`, where several
            tokens share a row and each has a weight.
        path: of the files in the folder.
        dtype: of the rows.
    """

    width: int
    tokenizer: Callable[[], Tokenizer]
    layout: str = "sentence-transformers"
    path: str = "0_StaticEmbedding"
    dtype: str = "float32"

    def write(self, place: Place) -> int:
        """Write the tokenizer and the table."""
        import torch

        place.directory.mkdir(parents=True, exist_ok=True)
        tokenizer = self.tokenizer()
        tokenizer.save(str(place.directory / "tokenizer.json"))
        tokens = tokenizer.get_vocab_size()
        mapped = self.layout == "model2vec-mapped"
        rows = tokens // 2 if mapped else tokens
        sizes = {"embeddings": (rows, self.width), "weights": (tokens,)}
        tensors = random_tensors(sizes, place.seed)
        tensors["embeddings"] = tensors["embeddings"].to(getattr(torch, self.dtype))
        if mapped:
            tensors["mapping"] = torch.randint(0, rows, (tokens,))
            tensors["weights"] = tensors["weights"].exp().to(torch.float64)
        else:
            del tensors["weights"]
        if self.layout == "sentence-transformers":
            tensors = {"embedding.weight": tensors["embeddings"]}
        else:
            write_json(place.directory / "config.json", self._model2vec())
        save_tensors(tensors, place.directory)
        return self.width

    def _model2vec(self) -> dict[str, object]:
        return {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "tokenizer_name": "baai/bge-base-en-v1.5",
            "apply_pca": self.width,
            "apply_zipf": True,
            "hidden_dim": self.width,
            "seq_length": 1000000,
            "normalize": True,
        }


@dataclass(frozen=True)
class Router:
    """Sends queries and documents through modules of their own.

    Attributes:
        routes: modules for each kind of text; a module that is in several is written once.
        default: route of a text whose kind is not said.
        path: of the files in the folder.
        file: name of the settings, which was config.json when the class was called Asym.
        name: of the class.
    """

    routes: Mapping[str, tuple[Module, ...]]
    default: str | None = "document"
    path: str = ""
    file: str = "router_config.json"
    name: str = "Router"

    def write(self, place: Place) -> int:
        """Write the settings, and each module into a directory of its own."""
        types: dict[str, str] = {}
        structure: dict[str, list[str]] = {}
        written: dict[int, tuple[str, int]] = {}
        for route, modules in self.routes.items():
            width = place.width
            structure[route] = []
            for index, module in enumerate(modules):
                if id(module) not in written:
                    name = f"{route}_{index}_{class_name(module)}"
                    types[name] = class_path(module, place.generation)
                    inner = Place(place.directory / name, width, place.generation, place.seed + len(types))
                    written[id(module)] = name, module.write(inner)
                name, width = written[id(module)]
                structure[route].append(name)
        parameters: dict[str, object] = {"allow_empty_key": True}
        if place.generation == 6:
            parameters |= {"default_route": self.default, "route_mappings": {}}
        content = {"types": types, "structure": structure, "parameters": parameters}
        write_json(place.directory / self.file, content)
        return width
