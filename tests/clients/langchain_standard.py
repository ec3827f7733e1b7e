"""LangChain's own tests for embeddings, of the package langchain-tests, with the bundle of $BUNDLE."""

import os
from typing import Any

from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from whiten.integrations.langchain import BundleEmbeddings


class OfABundle:
    @property
    def embeddings_class(self) -> type[BundleEmbeddings]:
        return BundleEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"encoder": os.environ["BUNDLE"]}


class TestUnits(OfABundle, EmbeddingsUnitTests):  # type: ignore[misc]
    pass


class TestIntegration(OfABundle, EmbeddingsIntegrationTests):  # type: ignore[misc]
    pass
