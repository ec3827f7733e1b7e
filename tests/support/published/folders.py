"""How a published model is described, and its folder written."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from support.published.modules import Generation, Module, Place, class_name, class_path, write_json

_VERSIONS = {
    2: {"sentence_transformers": "2.2.2", "transformers": "4.28.1", "pytorch": "1.13.0+cu117"},
    3: {"sentence_transformers": "3.4.1", "transformers": "4.48.0", "pytorch": "2.5.1"},
    6: {"sentence_transformers": "6.0.0", "transformers": "5.0.0", "pytorch": "2.9.0"},
}


_SEED = 1
"""Seed of the first module's weights. Networks of two rows that are alike are equal, and so are traced once."""


@dataclass(frozen=True)
class Published:
    """What is needed to make the folder of a model.

    Attributes:
        name: of the row in the catalogue, or of the rare thing.
        modules: in their order.
        generation: version of sentence-transformers that saved the folder.
        plain: whether it is a repository of transformers, without modules.json and all that belongs to it.
        prompts: texts put before a text, by their names; None where the folder has no such setting.
        default_prompt: name of the prompt for texts for which none is named.
        similarity: name of the function that compares two vectors; None where the folder does not say.
        settings: more of config_sentence_transformers.json; None for no such file.
        minimum: the version of transformers that reads the folder.
        opens: whether `SentenceTransformer(folder)` works.
    """

    name: str
    modules: tuple[Module, ...]
    _: KW_ONLY
    generation: Generation = 3
    plain: bool = False
    prompts: Mapping[str, str] | None = None
    default_prompt: str | None = None
    similarity: str | None = None
    settings: Mapping[str, Any] | None = field(default_factory=dict)
    minimum: str = "4.57"
    opens: bool = True

    @property
    def missing(self) -> str | None:
        """Return what the installed packages are too old for; None if they read the folder.

        Folders that sentence-transformers 6 saved name modules that earlier versions do not have.
        """
        import sentence_transformers
        import transformers

        if Version(transformers.__version__) < Version(self.minimum):
            return f"needs transformers {self.minimum}"
        newest = self.generation == 6 or self.name in _SIX
        if newest and Version(sentence_transformers.__version__) < Version("6"):
            return "needs sentence-transformers 6"
        return None


_SIX = ("static-mapped",)
"""Rows whose files earlier versions of sentence-transformers cannot read."""


def save(row: Published, directory: Path) -> Path:
    """Write the folder of a model, and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    width = 0
    listed = []
    for index, module in enumerate(row.modules):
        path = _path(index, module)
        width = module.write(Place(directory / path, width, row.generation, _SEED + index))
        listed.append({"idx": index, "name": str(index), "path": path, "type": class_path(module, row.generation)})
    if row.plain:
        (directory / "sentence_bert_config.json").unlink(missing_ok=True)
        return directory
    write_json(directory / "modules.json", listed)
    if row.settings is not None:
        write_json(directory / "config_sentence_transformers.json", _settings(row))
    return directory


def _path(index: int, module: Module) -> str:
    """Return the path of a module in a folder: the first may be at its root."""
    first: str | None = getattr(module, "path", None)
    return first if index == 0 and first is not None else f"{index}_{class_name(module)}"


def _settings(row: Published) -> dict[str, Any]:
    """Return the content of config_sentence_transformers.json."""
    prompts, similarity = row.prompts, row.similarity
    content: dict[str, Any] = {"__version__": _VERSIONS[row.generation]}
    if row.generation == 6:  # it writes everything
        content["model_type"] = "SentenceTransformer"
        prompts = {"document": "", "query": ""} | dict(prompts or {})
        similarity = similarity or "cosine"
    if prompts is not None:
        content |= {"prompts": prompts, "default_prompt_name": row.default_prompt}
    if similarity is not None:
        content["similarity_fn_name"] = similarity
    return content | dict(row.settings or {})
