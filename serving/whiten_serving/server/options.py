"""Turn the settings into the options of the HTTP application."""

from pathlib import Path
from typing import get_args

from whiten_serving.http.options import AccessLog, HttpOptions, TokenIds
from whiten_serving.server.log import Form
from whiten_serving.settings.table import Settings


def http_options(settings: Settings, keys: tuple[str, ...], form: Form) -> HttpOptions:
    """Return the options of the application.

    Args:
        settings: the settings.
        keys: keys, one of which a request must have.
        form: form of the log.

    Raises:
        UsageError: an option cannot be used as given.
    """
    token_ids, _, file = settings.token_ids.partition("=")
    access: AccessLog = form if settings.access_log else "off"
    return HttpOptions(
        api_keys=keys,
        metrics_need_key=settings.metrics_need_key,
        cors_origins=settings.cors_origin,
        max_texts=settings.max_texts,
        max_body=settings.max_body,
        max_waiting_body=settings.max_waiting_body,
        max_text_chars=settings.max_text_chars,
        max_headers=settings.max_headers,
        body_timeout=settings.body_timeout,
        timeout=settings.timeout,
        token_ids=next(kind for kind in get_args(TokenIds) if kind == token_ids),
        token_file=Path(file) if file else None,
        on_long="error" if settings.on_long == "error" else "truncate",
        empty="error" if settings.empty == "error" else "embed",
        normalize=settings.normalize,
        access_log=access,
    )
