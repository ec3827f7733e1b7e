"""Serve the page of this folder, with a bundle and the packages that it needs, to this machine alone, compressed.

Usage: python serve.py BUNDLE [--modules node_modules] [--port 8000]
"""

import argparse
import gzip
import io
import sys
from contextlib import suppress
from functools import cache, partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "clients" / "js" / "src"
LARGE = ("onnx/model.onnx", "onnx/model.onnx_data", "tokenizer.json")
WASM = "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm"
TYPES = {".wasm": "application/wasm", ".mjs": "text/javascript", ".js": "text/javascript"}


@cache
def compressed(path: Path) -> bytes:
    """Return the content of a file, compressed once."""
    return gzip.compress(path.read_bytes(), 6, mtime=0)


class Handler(SimpleHTTPRequestHandler):
    """Serves the page at /, the client at /whiten/, npm's packages at /modules/ and the bundle at /bundle/.

    Args:
        places: folder of each first part of a path; "" is the page's.
    """

    extensions_map = SimpleHTTPRequestHandler.extensions_map | TYPES

    def __init__(self, *arguments: object, places: dict[str, Path], **options: object) -> None:
        self.places = places
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        """Return the file of an address, in the folder of its first part."""
        first, _, rest = path.lstrip("/").partition("/")
        self.directory = str(self.places.get(first, HERE))
        return super().translate_path(f"/{rest}" if first in self.places else path)

    def send_head(self) -> io.BytesIO | None:
        """Send the headers of a file that is compressed, as most servers do."""
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        content = compressed(path)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return io.BytesIO(content)

    def log_message(self, form: str, *arguments: object) -> None:
        """Print nothing."""


def server(bundle: Path, modules: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page on 127.0.0.1; port 0 is any free one."""
    for path in (modules / WASM, *(bundle / name for name in LARGE)):
        if path.exists():
            compressed(path)
    places = {"whiten": CLIENT, "modules": modules, "bundle": bundle}
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, places=places))


def main() -> int:
    """Serve until Ctrl-C; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="folder of the bundle, such as that of --layers 0 --precision int8")
    parser.add_argument("--modules", type=Path, default=HERE / "node_modules", help="folder of npm's packages")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    for path, what in (
        (arguments.bundle / "whiten.json", "a bundle"),
        (arguments.modules / "onnxruntime-web", "packages"),
    ):
        if not path.exists():
            print(f"serve.py: {path} is missing; wanted {what}: see README.md", file=sys.stderr)
            return 2
    with server(arguments.bundle, arguments.modules, arguments.port) as serving:
        print(f"http://127.0.0.1:{serving.server_address[1]}/")
        with suppress(KeyboardInterrupt):
            serving.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
