"""Create sessions from an ONNX file, and notice when the file was replaced since it was opened."""

from pathlib import Path
from typing import Any

from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE
from whiten_runtime.bundle.graph_names import OUTPUT
from whiten_runtime.errors import BundleError, IntegrityError
from whiten_runtime.ort.session import SessionOptions, create_session


class GraphFile:
    """Represents an ONNX file from token ids to vectors, with its external data."""

    def __init__(self, path: Path, options: SessionOptions, value: str = OUTPUT) -> None:
        self.path = path
        self.bytes = sum(file.stat().st_size for file in self._files())
        self._options = options
        self._value = value
        self._original = self._identity()

    @property
    def unchanged(self) -> bool:
        """Return whether the files are the same as when this object was created."""
        return self._identity() == self._original

    def create_session(self, threads: int | None, options: SessionOptions | None = None) -> Any:
        """Create a session of the graph."""
        if not self.unchanged:
            raise IntegrityError(f"{self.path}: replaced since it was opened; open it again, or restart the service")
        value = None if self._value == OUTPUT else self._value
        return create_session(self.path, options or self._options, threads, value)

    def output_widths(self, session: Any) -> dict[str, int]:
        """Return the number of coordinates of each output that holds vectors."""
        inputs = {value.name: value.type for value in session.get_inputs()}
        if inputs != {"input_ids": "tensor(int64)", "attention_mask": "tensor(int64)"}:
            raise BundleError(
                f"{self.path}: takes {inputs}, not input_ids and attention_mask as int64; export the model again"
            )
        widths = {
            output.name: output.shape[1]
            for output in session.get_outputs()
            if output.type == "tensor(float)" and len(output.shape) == 2 and isinstance(output.shape[1], int)
        }
        if self._value not in widths:
            raise BundleError(
                f"{self.path}: has no output {self._value}, float32 [batch_size, k]; export the model again"
            )
        return widths

    def _files(self) -> list[Path]:
        """Return the paths of the graph and its external data, if they exist."""
        external = self.path.with_name(Path(EXTERNAL_DATA_FILE).name)
        return [file for file in (self.path, external) if file.is_file()]

    def _identity(self) -> list[tuple[int, ...]]:
        """Return numbers that change when the graph or its weights are replaced."""
        stats = [file.stat() for file in self._files()]
        return [(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]
