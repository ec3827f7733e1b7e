"""Test prompts that take all the tokens that a text may have, with sentence-transformers as the judge of the rest."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from support.checkpoints import write_json
from support.cli import ok, refused
from support.published import peer, save, transformer
from whiten import Encoder

LONG, SHORT = "Represent the sentence for retrieving documents of the archive: " * 4, "find: "
TEXTS = ["the cat sat", "rain", ""]


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a model of 12 tokens with two prompts, of which one fills them."""

    def write(pooling: str, include_prompt: bool, normalize: bool = False) -> Path:
        first = transformer("bert", max_seq_length=12)
        pool = Pooling(first.get_embedding_dimension(), pooling, include_prompt=include_prompt)
        return save(
            [first, pool, *([Normalize()] if normalize else [])], tmp_path / "m", prompts={"q": LONG, "s": SHORT}
        )

    return write


@pytest.mark.parametrize(
    ("pooling", "include_prompt", "normalize"),
    [
        ("mean", False, False),
        ("mean", False, True),
        ("lasttoken", False, False),
        ("mean", True, False),
        ("cls", True, False),
    ],
)
def test_a_prompt_that_fills_the_text_is_told_once(
    published: Callable[..., Path], tmp_path: Path, pooling: str, include_prompt: bool, normalize: bool
) -> None:
    folder = published(pooling, include_prompt, normalize)
    result = ok("export", folder, "--out", tmp_path / "b", "-q")
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: prompt 'q' has ")
    assert "tokens, a text may have 12: nothing of a text would be left, so all texts get the same vector" in line
    with Encoder(tmp_path / "b") as encoder:
        for name in ("q", "s"):
            np.testing.assert_allclose(
                encoder.encode(TEXTS, prompt_name=name), peer(folder).encode(TEXTS, prompt_name=name), atol=1e-5
            )


@pytest.mark.parametrize(("pooling", "normalize"), [("cls", False), ("max", False), ("max", True)])
def test_it_is_refused_where_the_pooling_has_no_vector_of_no_tokens(
    published: Callable[..., Path], tmp_path: Path, pooling: str, normalize: bool, recwarn: pytest.WarningsRecorder
) -> None:
    error = refused("export", published(pooling, False, normalize), "--out", tmp_path / "b", "-q")
    assert "prompt 'q' has " in error
    assert "tokens, a text may have 12: nothing of a text would be left, and pooling" in error
    assert "nan" not in error.lower().replace("--max", "")
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_a_longer_maximum_length_helps(published: Callable[..., Path], tmp_path: Path, pooling: str) -> None:
    folder = published(pooling, False)
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"q": "represent the sentence: "}})
    assert "a text may have 6" in refused("export", folder, "--max-length", "6", "--out", tmp_path / "b")
    assert ok("export", folder, "--max-length", "24", "--out", tmp_path / "b", "-q").stderr == ""
