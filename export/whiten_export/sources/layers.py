"""Parse and resolve the numbers of layers."""

from whiten_runtime.errors import UsageError


def parse_numbers(name: str, text: str, example: str = "1,12") -> tuple[int, ...]:
    """Parse whole numbers such as the layers "1,12"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{name} is '{text}'; wanted whole numbers separated by commas, such as {example}") from None


def resolve_layers(
    layers: tuple[int, ...], num_hidden_layers: int, available: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return sorted indices into the hidden states; negative ones count from the top."""
    resolved = []
    for layer in layers:
        index = layer + num_hidden_layers + 1 if layer < 0 else layer
        if not 0 <= index <= num_hidden_layers:
            raise UsageError(
                f"layer {layer} does not exist: the model has layers 0 (embeddings) to {num_hidden_layers}, "
                f"or -1 to {-num_hidden_layers - 1} from the top"
            )
        if index in resolved:
            raise UsageError(f"layer {index} is given twice; name each layer once")
        if available is not None and index not in available:
            raise UsageError(
                f"layer {index} is not among the outputs of this graph, only {', '.join(map(str, available))}; choose "
                "one of them, or export the graph with all hidden states"
            )
        resolved.append(index)
    return tuple(sorted(resolved))
