"""TEI's routes: as huggingface_hub and SageMaker ask them, and answers of the shapes that TEI publishes."""

from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from support.asgi import asked
from whiten import Encoder

TEXTS = ["A first sentence.", "", "Ein zweiter Satz über Käse 🧀", "word " * 300]

NUMBERS = {"type": "array", "items": {"type": "number"}}
COUNT = {"type": "integer", "minimum": 0}
PLACE = {"anyOf": [COUNT, {"type": "null"}]}
SHAPES = {
    "embed": {"type": "array", "items": NUMBERS},
    "similarity": NUMBERS,
    "tokenize": {
        "type": "array",
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "text", "special"],
                "properties": {
                    "id": COUNT,
                    "text": {"type": "string"},
                    "special": {"type": "boolean"},
                    "start": PLACE,
                    "stop": PLACE,
                },
            },
        },
    },
    "info": {
        "type": "object",
        "required": [
            *("model_id", "model_dtype", "model_type", "max_concurrent_requests", "max_input_length"),
            *("max_batch_tokens", "max_client_batch_size", "auto_truncate", "tokenization_workers", "version"),
        ],
        "properties": {
            "model_id": {"type": "string"},
            "model_sha": {"type": ["string", "null"]},
            "model_dtype": {"type": "string"},
            "model_type": {
                "type": "object",
                "required": ["embedding"],
                "properties": {
                    "embedding": {
                        "type": "object",
                        "required": ["pooling"],
                        "properties": {"pooling": {"type": "string"}},
                    }
                },
            },
            "max_concurrent_requests": COUNT,
            "max_input_length": COUNT,
            "max_batch_tokens": COUNT,
            "max_batch_requests": PLACE,
            "max_client_batch_size": COUNT,
            "auto_truncate": {"type": "boolean"},
            "tokenization_workers": COUNT,
            "version": {"type": "string"},
            "sha": {"type": ["string", "null"]},
            "docker_label": {"type": ["string", "null"]},
        },
    },
}
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
