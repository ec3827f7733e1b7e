"""Name the files of a bundle that only other programs read, and find those that differ from the manifest."""

from collections.abc import Mapping
from pathlib import Path

from whiten_runtime.bundle.hashing import sha256_of
from whiten_runtime.bundle.manifest import FileRecord

CLIENT_FILES = frozenset(
    {
        *("README.md", "config.json", "special_tokens_map.json", "tokenizer_config.json"),
        *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    }
)
"""Files that no vector of `Encoder` depends on. Programs that save a model write them anew. A model of
sentence-transformers takes a smaller maximum length from its own file.
"""

TRANSFORMERS_JS = "transformers.js_config"
"""Key of `config.json` under which transformers.js looks up how a model's files are called."""

SEPARATE_WEIGHTS = "use_external_data_format"
"""Key under it: names of graphs whose weights are files of their own, with the number of these."""


def changed_client_files(root: Path, files: Mapping[str, FileRecord]) -> list[str]:
    """Return the names, sorted, of client files that differ from a manifest's records, or that it does not list."""
    return sorted(name for name in CLIENT_FILES if _differs(root / name, files.get(name)))


def _differs(path: Path, record: FileRecord | None) -> bool:
    if not path.is_file():
        return record is not None
    return record is None or path.stat().st_size != record.bytes or sha256_of([path]) != record.sha256
