"""schemathesis draws requests from GET /openapi.json: the answers are those that it describes."""

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whiten_serving.http.app import all_paths

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("method", "path"), [(endpoint.method, path) for path, endpoint in all_paths()])
def test_requests_that_are_drawn_from_the_document(app_with: Any, method: str, path: str) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="needs the extra test-all")
    from schemathesis.checks import negative_data_rejection, positive_data_acceptance
    from schemathesis.generation import GenerationMode

    operation = schemathesis.openapi.from_asgi("/openapi.json", app_with(token_ids="own"))[path][method]
    modes = GenerationMode if method == "POST" else [GenerationMode.POSITIVE]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @given(cases.filter(lambda case: "\n" not in unquote(case.path_parameters.get("model", ""))))
    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    def validate(case: Any) -> None:
        # A model may have no such prompt; null is as no field, whatever its type.
        case.call_and_validate(excluded_checks=[positive_data_acceptance, negative_data_rejection])

    validate()
