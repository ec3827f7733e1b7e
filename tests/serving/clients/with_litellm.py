"""Run in the clients' environment: see driver.py."""

from typing import Any

import litellm
import numpy as np
from driver import KEY, LONG, MODEL, STRICT, URL, Embed, drive


def way(provider: str, path: str = "", **options: str) -> Any:
    def for_server(url: str) -> Embed:
        model, base = f"{provider}/{MODEL}", f"{url}{path}"
        return lambda texts: [
            item["embedding"]
            for item in litellm.embedding(model=model, input=texts, api_base=base, api_key=KEY, **options).data
        ]

    return for_server


drive(
    {
        "openai": way("openai", "/v1"),
        "floats": way("openai", "/v1", encoding_format="float"),
        "hosted_vllm": way("hosted_vllm", "/v1"),
        "unit_ollama": way("ollama"),
        "huggingface": way("huggingface", input_type="feature-extraction"),  # else it asks the hub for it
    }
)

try:
    litellm.embedding(model=f"openai/{MODEL}", input=["a"], dimensions=999, api_base=f"{URL}/v1", api_key=KEY)
except litellm.BadRequestError as error:
    print(error)
else:
    raise AssertionError("999 dimensions were given")

for provider in ("openai", "hosted_vllm"):
    models = [
        {"model_name": name, "litellm_params": {"model": f"{provider}/{MODEL}", "api_base": base, "api_key": KEY}}
        for name, base in (("strict", f"{STRICT}/v1"), ("cuts", f"{URL}/v1"))
    ]
    router = litellm.Router(models, context_window_fallbacks=[{"strict": ["cuts"]}], num_retries=0)
    answer = router.embedding(model="strict", input=["a", LONG])
    rows, want = np.array([item["embedding"] for item in answer.data]), np.array(way(provider, "/v1")(URL)(["a", LONG]))
    assert np.abs(rows - want).max() <= 1e-5 * np.linalg.norm(want, axis=1).min()
