"""Save a network of random weights: `python -m benchmarks.full_size.checkpoint FOLDER '["bert", {CONFIG}]'`.

Runs in a process of its own, so that its memory is not the export's.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.checkpoints import FAMILIES, save_checkpoint


def save(folder: Path, family: str, config: dict[str, Any]) -> None:
    """Save the network, with the tokenizer of the tests' small network of that family."""
    save_checkpoint(family, folder)
    small = transformers.AutoConfig.from_pretrained(folder)
    ids = {name: getattr(small, name) for name in FAMILIES[family].ids}
    torch.manual_seed(0)
    full = transformers.AutoConfig.for_model(FAMILIES[family].model_type, **config | ids)
    transformers.AutoModel.from_config(full).save_pretrained(folder)
    described = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(described | {"model_max_length": 512}))


if __name__ == "__main__":
    save(Path(sys.argv[1]), *json.loads(sys.argv[2]))
