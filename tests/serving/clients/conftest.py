"""Leave these tests out where the packages of the extra `serve` are not installed."""

from importlib.util import find_spec

NEEDED = ("orjson", "prometheus_client", "uvicorn", "uvloop")

collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]
