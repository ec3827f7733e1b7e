"""Change one thing in an ONNX graph, chosen at random: operators, wires, attributes, weights, order, ends, versions."""

from collections.abc import Callable
from random import Random

import onnx

_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})


def _operator(model: onnx.ModelProto, random: Random) -> str:
    node = random.choice(model.graph.node)
    old, node.op_type = node.op_type, random.choice(_OPERATORS)
    return f"{old} becomes {node.op_type}"


def _domain(model: onnx.ModelProto, random: Random) -> str:
    node = random.choice(model.graph.node)
    node.domain = random.choice(("com.microsoft", "ai.onnx.ml", "evil", "ai.onnx", "\0"))
    return f"{node.op_type} {node.domain!r}"


def _inputs(model: onnx.ModelProto, random: Random) -> str:
    node = random.choice(model.graph.node)
    names = [*(name for other in model.graph.node for name in other.output), *(w.name for w in model.graph.initializer)]
    if node.input and random.random() < 0.8:
        node.input[random.randrange(len(node.input))] = random.choice([*names, "", "nowhere"])
    else:
        node.input.append(random.choice(names))
    return node.op_type


def _attribute(model: onnx.ModelProto, random: Random) -> str:
    node = random.choice([node for node in model.graph.node if node.attribute])
    attribute = random.choice(node.attribute)
    number = random.choice((0, 1, -1, 2, 7, -7, 2**31, -(2**63), 2**63 - 1))
    attribute.i, attribute.f = number, float(number)
    if attribute.ints:
        attribute.ints[random.randrange(len(attribute.ints))] = number
    if random.random() < 0.2:
        attribute.type = random.randrange(15)
    return f"{node.op_type} {attribute.name} {number}"


def _weights(model: onnx.ModelProto, random: Random) -> str:
    tensor = random.choice(model.graph.initializer)
    change = random.choice(("dims", "type", "data", "name", "external"))
    if change == "dims" and tensor.dims:
        tensor.dims[random.randrange(len(tensor.dims))] = random.choice((0, 1, -1, 3, 64, 2**31, 2**62))
    elif change == "type":
        tensor.data_type = random.randrange(25)
    elif change == "data" and tensor.raw_data:
        data = bytearray(tensor.raw_data)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        tensor.raw_data = bytes(data)
    elif change == "name":
        tensor.name = random.choice(("", "x", *(other.name for other in model.graph.initializer)))
    else:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        place = random.choice(("/etc/passwd", "../tokenizer.json", "model.onnx", "tokenizer.json", "\0", ""))
        for key, value in (("location", place), ("offset", "0"), ("length", str(random.choice((0, 64, 2**62))))):
            tensor.external_data.add(key=key, value=value)
    return f"{tensor.name} {change}"


def _order(model: onnx.ModelProto, random: Random) -> str:
    nodes = list(model.graph.node)
    place = random.randrange(len(nodes))
    change = random.choice(("remove", "repeat", "reverse", "move"))
    if change == "remove":
        del nodes[place]
    elif change == "repeat":
        nodes.insert(place, nodes[place])
    elif change == "reverse":
        nodes.reverse()
    else:
        nodes.append(nodes.pop(place))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return change


def _ends(model: onnx.ModelProto, random: Random) -> str:
    values = random.choice((model.graph.input, model.graph.output))
    value = random.choice(values)
    change = random.choice(("name", "type", "dim", "remove", "more"))
    if change == "name":
        value.name = random.choice(("", "x", "attention_mask", "sentence_embedding"))
    elif change == "type":
        value.type.tensor_type.elem_type = random.randrange(25)
    elif change == "dim":
        random.choice(value.type.tensor_type.shape.dim).dim_value = random.choice((0, 1, 7, -1, 2**40))
    elif change == "remove":
        values.remove(value)
    else:
        values.add().CopyFrom(value)
    return change


def _subgraph(model: onnx.ModelProto, random: Random) -> str:
    node = model.graph.node.add(op_type=random.choice(("If", "Loop", "Scan", "SequenceMap", "Identity")), output=["z"])
    node.input.append(model.graph.node[0].output[0])
    node.attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.node.add(op_type="Identity")
    return node.op_type


def _version(model: onnx.ModelProto, random: Random) -> str:
    number = random.choice((0, 1, 7, 99, -1, 2**40))
    if random.random() < 0.5:
        model.ir_version = number
    else:
        model.opset_import[0].version = number
    return str(number)


def _extras(model: onnx.ModelProto, random: Random) -> str:
    change = random.choice(("function", "training", "sparse", "metadata"))
    if change == "function":
        model.functions.add(name="f", domain="x")
    elif change == "training":
        model.training_info.add()
    elif change == "sparse":
        model.graph.sparse_initializer.add()
    else:
        model.metadata_props.add(key="\x1b", value="x" * 10_000)
    return change


GRAPH_CHANGES: tuple[Callable[[onnx.ModelProto, Random], str], ...] = (
    *(_operator, _operator, _domain, _inputs, _inputs, _attribute, _attribute, _weights, _weights, _order, _ends),
    *(_subgraph, _version, _extras),
)
"""Functions that change one thing in a model, and return what, in words."""
