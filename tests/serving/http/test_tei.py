"""TEI's routes: as huggingface_hub and SageMaker ask them, and answers of the shapes that TEI publishes."""

from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from support.asgi import asked
from whiten import Encoder

TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]


def list_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def object_of(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


COUNT = {"type": "integer", "minimum": 0}
FLAG = {"type": "boolean"}
PLACE = {"anyOf": [COUNT, {"type": "null"}]}
TEXT = {"type": "string"}
MAYBE = {"type": ["string", "null"]}
NUMBERS = list_of({"type": "number"})
TOKEN = object_of("id text special", id=COUNT, text=TEXT, special=FLAG, start=PLACE, stop=PLACE)
INFO = object_of(
    "model_id model_dtype model_type max_concurrent_requests max_input_length max_batch_tokens max_client_batch_size "
    "auto_truncate tokenization_workers version",
    **dict.fromkeys(("model_id", "model_dtype", "version"), TEXT),
    **dict.fromkeys(("model_sha", "sha", "docker_label"), MAYBE),
    **dict.fromkeys(("max_concurrent_requests", "max_input_length", "max_batch_tokens"), COUNT),
    **dict.fromkeys(("max_client_batch_size", "tokenization_workers"), COUNT),
    model_type=object_of("embedding", embedding=object_of("pooling", pooling=TEXT)),
    max_batch_requests=PLACE,
    auto_truncate=FLAG,
)
SHAPES = {"embed": list_of(NUMBERS), "similarity": NUMBERS, "tokenize": list_of(list_of(TOKEN)), "info": INFO}
"""What TEI's published description says of its answers, written down again for these tests."""


def checked(answer: Any, shape: str) -> Any:
    assert answer.status == 200, answer.body
    Draft202012Validator(SHAPES[shape]).validate(answer.json())
    return answer.json()


def test_embed(app: Any) -> None:
    checked(asked(app, "POST", "/embed", {"inputs": TEXTS}), "embed")


@pytest.mark.parametrize("path", ["/similarity", "/", "/invocations"])
def test_similarity_is_the_cosine(app: Any, reference: Encoder, path: str) -> None:
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
    found = checked(asked(app, "POST", path, body), "similarity")
    rows = reference.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(found, rows @ rows[0], atol=1e-5)
    assert found[0] == pytest.approx(1, abs=1e-6)


def test_tokenize(app: Any, reference: Encoder) -> None:
    found = checked(asked(app, "POST", "/tokenize", {"inputs": ["Über Käse 🧀 and more"]}), "tokenize")[0]
    assert len(found) == reference.token_count("Über Käse 🧀 and more")
    assert [one["special"] for one in found] == [True, *[False] * (len(found) - 2), True]
    text = "Über Käse 🧀 and more"
    assert all(one["text"] == text[one["start"] : one["stop"]] for one in found if not one["special"])
    assert "".join(one["text"] for one in found[1:-1]) == text.replace(" ", "")
    bare = checked(asked(app, "POST", "/tokenize", {"inputs": text, "add_special_tokens": False}), "tokenize")
    assert bare == [found[1:-1]]


def test_info(app: Any, reference: Encoder) -> None:
    found = checked(asked(app, "GET", "/info"), "info")
    assert found["model_id"] == "tiny"
    assert found["max_input_length"] == reference.max_seq_length
    assert found["whiten"]["space"] == reference.space
