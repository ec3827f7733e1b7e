"""The HTTP application: routes of OpenAI, TEI and Ollama, and our own, as raw ASGI."""
