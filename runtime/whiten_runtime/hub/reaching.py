"""Ask whether the model hub answers, and say in a line what is in the way: a certificate, a proxy, or time."""

from typing import Any
from urllib.parse import urlsplit

from whiten_runtime.errors import one_line
from whiten_runtime.ort.threads import in_thread

UNREACHED = "the hub is out of reach"
OFFLINE = "HF_HUB_OFFLINE is set"

_TIMEOUT = "HF_HUB_ETAG_TIMEOUT"
"""The client's own variable for the seconds that it waits for an answer without a file, 10 by default."""

_LOGIN = 407
"""Status of a proxy that wants a user and a password."""


def why_unreached() -> str | None:
    """Return why the hub does not answer, and what to set, for the middle of a message; None if it answers.

    The hub has the seconds of HF_HUB_ETAG_TIMEOUT for it, the look-up of its name included: its client alone would try
    several times.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return OFFLINE
    seconds = constants.HF_HUB_ETAG_TIMEOUT

    def ask() -> Any:
        return get_session().head(constants.ENDPOINT, timeout=seconds)

    try:
        answer = in_thread(ask, "whiten-hub").result(seconds)  # the look-up of a name has no bound of its own
    except Exception as error:  # those of the HTTP library, which differs between versions of huggingface_hub
        answer = error
    return _why(answer, constants.ENDPOINT, seconds)


def _why(answer: Any, endpoint: str, seconds: float) -> str | None:
    """Return what an answer or an error says of the way to the hub; None for an answer of the hub."""
    host, (variable, proxy) = urlsplit(endpoint).netloc.rpartition("@")[2], _proxy(endpoint)
    name, reason = type(answer).__name__, one_line(answer) if isinstance(answer, Exception) else ""
    if getattr(answer, "status_code", None) == _LOGIN or (name == "ProxyError" and str(_LOGIN) in reason):
        return (
            f"{UNREACHED}: the proxy {proxy} before {host} wants a log-in ({_LOGIN}): set {variable} to "
            f"http://USER:PASSWORD@{proxy}"
        )
    if not isinstance(answer, Exception):
        return None
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return (
            f"{UNREACHED}: the certificate of {host} is not trusted ({reason}): set {_certificates()} to a file with "
            "the certificates of your network"
        )
    if isinstance(answer, TimeoutError) or "Timeout" in name:
        return f"{UNREACHED}: {host} has not answered in {seconds} s: set {_TIMEOUT} to more seconds"
    if proxy:
        return (
            f"{UNREACHED}: the proxy {proxy} before {host} does not work ({reason}): check {variable}, or name "
            f"{urlsplit(endpoint).hostname} in NO_PROXY"
        )
    return f"{UNREACHED}: {host} does not answer ({reason}): check the network and HF_ENDPOINT"


def _proxy(endpoint: str) -> tuple[str, str]:
    """Return the variable that names the proxy before an address, and its host and port, which are empty for none."""
    from urllib.request import getproxies, proxy_bypass  # takes 4 MB, which an encoder of a folder does not need

    address, proxies = urlsplit(endpoint), getproxies()
    kind = address.scheme if address.scheme in proxies else "all"
    proxy = "" if proxy_bypass(address.hostname or "") else proxies.get(kind, "")
    return f"{kind.upper()}_PROXY", urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2]


def _certificates() -> str:
    """Return the variable that names a file of certificates, by the client's HTTP library."""
    from huggingface_hub import __version__

    return "SSL_CERT_FILE" if int(__version__.partition(".")[0]) else "REQUESTS_CA_BUNDLE"
