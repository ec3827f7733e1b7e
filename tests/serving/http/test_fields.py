"""Fields of other servers: taken with the value that changes no vector, and refused by name with another."""

from typing import Any

import pytest

from support.asgi import asked

ROUTES = {
    "/v1/embeddings": {"input": "a"},
    "/embed": {"inputs": "a"},
    "/": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": "a"},
    "/api/embed": {"input": "a"},
    "/api/embeddings": {"prompt": "a"},
}


def message(answer: Any) -> str:
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


def vectors(answer: Any) -> Any:
    found = answer.json()
    return {name: value for name, value in found.items() if name != "total_duration"} if type(found) is dict else found


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("field", "without_effect", "others"),
    [
        ("stream", False, [True, 0, "false", [], {}]),
        ("modality", "text", ["image", 1]),
        ("late_chunking", False, [True]),
        ("truncate_prompt_tokens", None, [8, -1]),
        ("priority", 0, [1, False, 0.5]),
        ("add_special_tokens", True, [1, "true"]),
    ],
)
def test_values_that_change_nothing(app: Any, path: str, field: str, without_effect: Any, others: list[Any]) -> None:
    plain = asked(app, "POST", path, ROUTES[path])
    assert plain.status == 200
    taken = asked(app, "POST", path, ROUTES[path] | {field: without_effect})
    assert (taken.status, vectors(taken)) == (200, vectors(plain))
    for other in others:
        refused = asked(app, "POST", path, ROUTES[path] | {field: other})
        assert refused.status in (400, 422), other
        assert field in message(refused)


def test_all_at_once_with_halves_of_pairs_and_a_mark(app: Any) -> None:
    fields = '"stream":false, "priority": 0 ,"add_special_tokens" : true, "modality":null,"late_chunking":false'
    body = f'\ufeff{{{fields}, "input": ["\\ud83d"]}}'.encode()
    found = asked(app, "POST", "/v1/embeddings", body)
    assert found.json()["data"] == asked(app, "POST", "/v1/embeddings", {"input": ["\ufffd"]}).json()["data"]


def test_special_tokens_are_left_out_where_tokens_are_asked_for(app: Any) -> None:
    with_them, without = (
        asked(app, "POST", "/tokenize", {"inputs": "a", "add_special_tokens": special}).json()[0]
        for special in (True, False)
    )
    assert len(with_them) > len(without) > 0
    assert "add_special_tokens" in message(asked(app, "POST", "/embed", {"inputs": "a", "add_special_tokens": False}))


@pytest.mark.parametrize("field", ["strem", "task", "Stream", "stream "])
@pytest.mark.parametrize("path", ROUTES)
def test_fields_of_nobody_stay_refused(app: Any, path: str, field: str) -> None:
    for value in (None, False):
        answer = asked(app, "POST", path, ROUTES[path] | {field: value, "stream": False})
        assert answer.status in (400, 422)
        assert f"'{field}'" in message(answer)


@pytest.mark.parametrize(("context", "status"), [(8192.0, 200), (8192, 200), (8.5, 400), (0.0, 400), (-1.0, 400)])
def test_the_context_of_ollama_may_be_written_as_a_float(app: Any, context: float, status: int) -> None:
    for path in ("/api/embed", "/api/embeddings"):
        answer = asked(app, "POST", path, ROUTES[path] | {"options": {"num_ctx": context, "seed": 1}, "stream": False})
        assert answer.status == status
