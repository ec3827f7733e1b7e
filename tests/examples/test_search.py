"""Run the examples that search sentences, with the real programs, on a small bundle."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from support.corpus import sentences

pytestmark = pytest.mark.slow

QUERY = sentences(400)[123]
HIT = re.compile(r"^  (-?\d\.\d{3})  (.+)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("example", "kinds"), [("sqlite_search.py", ("float", "int8")), ("usearch_search.py", ("f32", "i8"))]
)
def test_a_sentence_finds_itself_in_stores_of_both_types(
    run_example: Callable[..., str],
    tiny_bundle: Path,
    corpus_file: Path,
    tmp_path: Path,
    example: str,
    kinds: tuple[str, ...],
) -> None:
    printed = run_example(example, tiny_bundle, "--texts", corpus_file, "--folder", tmp_path, QUERY)
    assert "embedded 400 sentences" in printed
    sizes = {kind: float(size) for kind, size in re.findall(r"^(\w+): ([\d.]+) MB, ", printed, re.MULTILINE)}
    assert tuple(sizes) == kinds
    assert sizes[kinds[1]] <= sizes[kinds[0]]
    hits = HIT.findall(printed)
    assert len(hits) == 6
    for cosine, text in (hits[0], hits[3]):
        assert text == QUERY
        assert float(cosine) == pytest.approx(1, abs=0.002)
    shares = [float(share) for share in re.findall(r"([\d.]+)% (?:of the ten|are among)", printed)]
    assert min(shares) > 90
    assert len(list(tmp_path.iterdir())) == 2
    for path in tmp_path.iterdir():
        path.write_bytes(b"mine")
    with pytest.raises(AssertionError, match=r"exists; move it away, or name another --folder"):
        run_example(example, tiny_bundle, "--texts", corpus_file, "--folder", tmp_path, QUERY)
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"mine"}
