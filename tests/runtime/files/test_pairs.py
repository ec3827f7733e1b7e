"""Test files of pairs of sentences with scores."""

import json
from pathlib import Path

import pytest

from whiten import DataError, UsageError
from whiten_runtime.files.judged import read_pairs

ROWS = [(f"sentence {n}", f"another, {n}", float(n % 5)) for n in range(12)]


ODD = "one\u2028two\x85three"


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "sts.csv"])
def test_pairs_are_read_from_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    path, rows = tmp_path / f"pairs.{kind}", [(ODD, "b", 0.0), *ROWS]
    lines = {
        "csv": ["score,sentence1,sentence2", *(f'{s},"{a}","{b}"' for a, b, s in rows)],
        "tsv": ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{s}" for a, b, s in rows)],
        "jsonl": [json.dumps({"sentence1": a, "sentence2": b, "score": s}, ensure_ascii=False) for a, b, s in rows],
        "sts.csv": [f"main\tnews\t2012\t{n}\t{s}\t{a}\t{b}" for n, (a, b, s) in enumerate(rows)],
    }[kind]
    path.write_text("\n".join(lines) + "\n\n", "utf-8")
    pairs = read_pairs(path)
    assert list(zip(pairs.first, pairs.second, pairs.scores, strict=True)) == rows
    assert (pairs.record.name, pairs.record.sentences) == (path.name, 13)


HEAD = "sentence1,sentence2,score\n"


@pytest.mark.parametrize(
    ("name", "content", "error", "named"),
    [
        ("a.csv", b"sentence1,score\nx,1\n", UsageError, "'sentence1', 'score'"),
        ("a.csv", b"", UsageError, "a.csv"),
        *(
            ("a.csv", f"{HEAD}{row}\n".encode(), DataError, "line 2")
            for row in ("x,y,nan", "x,y,1_0", "x,y,1e400", "x,y,\uff11", "x,y,", "x,y", "A man, a plan,y,3", 'x,"y,1')
        ),
        ("a.tsv", b"sentence1\tsentence2\tscore\nx\ty\tz\t1\n", DataError, "line 2"),
        ("a.csv", b"sentence1,score,sentence2,sentence1\nx,1,y,z\n", UsageError, "'sentence1'"),
        *(
            ("a.jsonl", f'{{"sentence1": "x", "sentence2": "y", "score": {score}}}\n'.encode(), DataError, "line 1 ")
            for score in ("true", "null", "[1]", "1e400", '"1_0"', '"\uff11"', "1" + "0" * 400, "1" + "0" * 5000)
        ),
        ("a.csv", f"{HEAD}x,y,1\n".encode(), DataError, "1 pairs"),
        ("a.csv", (HEAD + "x,y,1\n" * 20).encode(), DataError, "20 pairs"),
        ("a.csv", b"\xff\xfe,", DataError, "UTF-8"),
        ("a.jsonl", b"[1]\n", DataError, "line 1"),
        ("a.jsonl", b"[" * 100_000 + b"\n", DataError, "line 1"),
    ],
)
def test_files_without_pairs_are_refused(
    tmp_path: Path, name: str, content: bytes, error: type[Exception], named: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=named):
        read_pairs(tmp_path / name)


def test_a_quoted_sentence_may_have_lines(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(f'{HEAD}"line one\nline two",b,0\n' + "a,b,1\n" * 12, "utf-8")
    assert read_pairs(tmp_path / "b.csv").first[0] == "line one\nline two"
