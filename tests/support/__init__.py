"""What several folders of tests share; what one folder needs is in its conftest.py.

The fixtures in tests/conftest.py give the stock: `golden` bundles of tests/data, `tiny_bundle`, `checkpoint("bert")`,
`minilm_bundle`, `hub`. Here is what makes them:

- `families` and `vocabularies`: the table of small architectures, and their tokenizers; `checkpoints` writes them.
- `published`: folders of embedding models, written by sentence-transformers. `bundles`: copies of bundles, changed.
- `corpus`, `sts`, `vectors`: texts, pairs with scores, vectors, and `worst`, which compares vectors.
- `cli`: a command in this process. `asgi`: the HTTP application in this process. `server`: `whiten serve` in another.
- `clusters`: commands, nodes of Ray and a store in processes of their own.
- `hub`: a server that the real client of the model hub talks to. `runners`: a network that tests hold or let fail.
- `graphs`: small ONNX graphs.
- `once` and `traces`: what is slow to make is made once for all workers.
"""
