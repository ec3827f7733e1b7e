"""Serve sentence-transformers by FastAPI, as its users do: `python peer.py MODEL FILE PORT THREADS`.

Runs in the peer's own environment, with fastapi, uvicorn and sentence-transformers[onnx]. MODEL is a folder that
`benchmarks.peers` made, FILE the file of ONNX in it.
"""

import os
import sys
from typing import Any


def main() -> None:
    """Serve until the process is ended."""
    folder, file, port, threads = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads
    import onnxruntime
    import uvicorn
    from fastapi import Body, FastAPI
    from sentence_transformers import SentenceTransformer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    settings = {"file_name": file, "session_options": options, "provider": "CPUExecutionProvider"}
    model: Any = SentenceTransformer(folder, backend="onnx", device="cpu", model_kwargs=settings)
    app = FastAPI()

    def embed(input: list[str] = Body(embed=True)) -> dict[str, Any]:  # noqa: B008 - as FastAPI has it
        vectors = model.encode(input, batch_size=32)
        return {"data": [{"index": index, "embedding": row.tolist()} for index, row in enumerate(vectors)]}

    app.post("/v1/embeddings")(embed)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main()
