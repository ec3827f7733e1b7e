"""Test what the page on scale says: their commands exist, and the adapter for Spark gives the vectors of `encode`."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import invoke
from whiten import Encoder
from whiten_runtime.commands.console import whiten

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "scale.md").read_text("utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("  #")[0]
    for code in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for line in code.splitlines()
    if line.startswith("whiten ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_options_exist(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    help_text = invoke(whiten, name, "--help").stdout
    assert len(COMMANDS) > 6
    for argument in arguments:
        if argument.startswith("--"):
            assert argument in help_text


@pytest.mark.slow
def test_the_adapter_for_spark(tiny: Encoder, tiny_bundle: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the extra test-all")
    (code,) = [code for code in PYTHON if "mapInPandas" in code]
    assert len(code.strip().splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(compile(code, "clusters.md", "exec"), names)
    names["BUNDLE"] = str(tiny_bundle)
    texts = [f"Text number {number}." for number in range(10)]
    frames = [
        pandas.DataFrame({"id": list(map(str, part)), "text": [texts[one] for one in part]}) for part in ([1, 2], [5])
    ]
    found = pandas.concat(list(names["embed"](iter(frames))))
    assert found["id"].tolist() == ["1", "2", "5"]
    np.testing.assert_allclose(np.stack(found["embedding"]), tiny.encode([texts[1], texts[2], texts[5]]), atol=1e-5)
    names["encoder"].close()
