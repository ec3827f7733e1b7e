"""Make a graph of one attention, as PyTorch's exporter writes it."""

import numpy as np
import onnx_ir as ir

from whiten_export.graph.builder import constant

WIDTH, HEADS = 64, 4


def attention(scores: str = "c = Mul(s, scale)", mask: str = "m = Mul(pad, low)", shared: str = "") -> ir.Model:
    """Return an attention with bias, mask and scale as PyTorch's exporter writes it."""
    model = ir.from_onnx_text(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    g (int64[b, n] input_ids, int64[b, n] attention_mask) => (float[b, n, {WIDTH}] y)
    {{ x = Gather(table, input_ids)
       qp = MatMul(x, wq)
       qb = Add(qp, bq)
       qr = Reshape(qb, split)
       q = Transpose<perm=[0,2,1,3]>(qr)
       kp = MatMul(x, wk)
       kr = Reshape(kp, split)
       k = Transpose<perm=[0,2,3,1]>(kr)
       vp = MatMul(x, wv)
       vb = Add(vp, bv)
       vr = Reshape(vb, split)
       v = Transpose<perm=[0,2,1,3]>(vr)
       s = MatMul(q, k)
       {scores}
       f = Cast<to=1>(attention_mask)
       inverse = Sub(one, f)
       pad0 = Unsqueeze(inverse, axes)
       length = Shape<start=1, end=2>(attention_mask)
       tall = Concat<axis=0>(ones1, ones1, length, ones1)
       pad = Expand(pad0, tall)
       {mask}
       a = Add(c, m)
       p = Softmax<axis=-1>(a)
       o = MatMul(p, v)
       t = Transpose<perm=[0,2,1,3]>(o)
       context = Reshape(t, merge)
       z = MatMul(context, wo)
       y = Add(z, bo) {shared} }}
    """)
    generator = np.random.default_rng(0)
    weights = {name: generator.normal(size=(WIDTH, WIDTH)) / 8 for name in ("wq", "wk", "wv", "wo")}
    weights |= {name: generator.normal(size=WIDTH) for name in ("bq", "bv", "bo")}
    weights["table"] = generator.normal(size=(50, WIDTH))
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    arrays |= {"scale": np.float32(4 if "Div" in scores else 0.25), "one": np.float32(1), "low": np.float32(-1e4)}
    whole = {"split": [0, 0, HEADS, WIDTH // HEADS], "merge": [0, 0, WIDTH], "axes": [1, 2], "ones1": [1], "last": [2]}
    arrays |= {name: np.array(value, np.int64) for name, value in whole.items()}
    for name, array in arrays.items():
        users = [
            (node, i) for node in model.graph for i, v in enumerate(node.inputs) if v is not None and v.name == name
        ]
        for node, index in users:
            node.replace_input_with(index, constant(model.graph, name, array))
    return model
