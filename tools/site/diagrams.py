"""Draw the figures of docs/concepts that show steps: the graph, the proof and the id of a space."""

from drawing import Drawing

WIDTH = 760


def graph() -> str:
    """Return the way of one text through a bundle of the layers 0 and 1 of a network with six blocks."""
    draw = Drawing(WIDTH, 560, "From a text to token ids, through the graph of a bundle, to a sentence vector")
    draw.box((20, 24), (230, 52), ["“A man is playing a guitar.”", "a text"])
    draw.arrow((250, 50), (294, 50))
    draw.box((296, 24), (188, 52), ["tokenizer", "`tokenizer.json"])
    draw.arrow((484, 50), (528, 50))
    draw.box((530, 24), (210, 52), ["`101 1037 2158 … 102", "token ids"])

    draw.frame((20, 104), (720, 346), "onnx/model.onnx")
    draw.text((628, 124), "input_ids, attention_mask: int64 [batch, tokens]", "code", "faint", anchor="end")
    draw.arrow((635, 76), (635, 136), (110, 136), (110, 148))
    draw.box((40, 150), (140, 52), ["embeddings", "layer 0"], "own")
    draw.arrow((180, 176), (214, 176))
    draw.box((216, 150), (120, 52), ["block 1", "layer 1"], "own")
    draw.box((376, 150), (110, 52), ["block 2", "layer 2"], "absent")
    draw.text((510, 181), "…", "faint")
    draw.box((540, 150), (110, 52), ["block 6", "layer 6"], "absent")
    draw.text((376, 222), "above the highest layer chosen: not in the file", "small", "faint")

    draw.arrow((110, 202), (110, 238))
    draw.arrow((276, 202), (276, 238))
    draw.box((40, 240), (140, 40), ["mean over tokens"])
    draw.box((206, 240), (140, 40), ["mean over tokens"])
    draw.text((360, 256), "padding does not count;", "small", "faint")
    draw.text((360, 272), "tokens of a prompt may not", "small", "faint")
    draw.arrow((110, 280), (110, 326), (158, 326))
    draw.arrow((276, 280), (276, 304))
    draw.box((160, 306), (186, 40), ["mean over layers"])
    draw.arrow((346, 326), (394, 326))
    draw.box((396, 306), (200, 40), ["`unwhitened_embedding"])
    draw.text((608, 322), "[batch, d]", "code", "faint")
    draw.text((608, 338), "d = 384 here", "small", "faint")

    draw.arrow((496, 346), (496, 370), (118, 370), (118, 386))
    draw.box((40, 388), (156, 44), ["`Sub whitening.mean", "`[d]"], "good")
    draw.arrow((196, 410), (230, 410))
    draw.box((232, 388), (190, 44), ["`MatMul whitening.weight", "`[d, k]"], "good")
    draw.arrow((422, 410), (456, 410))
    draw.box((458, 388), (200, 44), ["`sentence_embedding", "`[batch, k]"], "own")
    draw.text((46, 364), "the whitening", "small", "good-text")

    draw.arrow((558, 432), (558, 484), (484, 484))
    draw.box((250, 464), (232, 40), ["a row of a float32 array"])
    draw.text((250, 528), "in the order of the texts, whatever order they were computed in", "small", "faint")
    return draw.svg()


def proof() -> str:
    """Return how a bundle is proven before it is written, and again on other machines."""
    draw = Drawing(WIDTH, 590, "The reference and the graph compute the same texts; a bundle is written if they agree")
    draw.text((20, 32), "At export", "title")
    draw.box((290, 20), (180, 52), ["probes", "texts, prompts, batches"])
    draw.arrow((330, 72), (330, 90), (190, 90), (190, 106))
    draw.arrow((430, 72), (430, 90), (570, 90), (570, 106))

    draw.box((40, 108), (300, 48), ["PyTorch, the full network", "float64, each text alone"], "own")
    draw.arrow((190, 156), (190, 178))
    draw.box((40, 180), (300, 48), ["pooling, layers, modules, whitening", "numpy, float64"], "own")
    draw.text((40, 250), "the reference", "small", "own-text")

    draw.box((420, 108), (300, 48), ["the bundle as it was written", "opened as a user opens it"])
    draw.arrow((570, 156), (570, 178))
    draw.box((420, 180), (300, 48), ["onnxruntime, in its precision", "alone, together, in odd batches"])
    draw.text((720, 250), "the graph", "small", "faint", anchor="end")

    draw.arrow((190, 228), (190, 286), (230, 286))
    draw.arrow((570, 228), (570, 286), (530, 286))
    draw.box(
        (232, 256),
        (296, 60),
        ["the gate (float32)", "every cosine ≥ 0.999999,", "coordinates within 1e-4 of the norm"],
    )
    draw.arrow((300, 316), (300, 344), (190, 344), (190, 366))
    draw.arrow((460, 316), (460, 344), (570, 344), (570, 366))
    draw.text((200, 338), "agrees", "small", "good-text")
    draw.text((524, 338), "does not", "small", "bad-text")
    draw.box(
        (40, 368),
        (300, 60),
        ["the folder gets its name, with", "`probes.json, probes.safetensors"],
        "good",
    )
    draw.box((420, 368), (300, 60), ["one line of error, exit code 1", "nothing is left behind"], "bad")

    draw.line(((20, 452), (740, 452)))
    draw.text((124, 480), "On any machine, later", "title")
    draw.arrow((110, 428), (110, 498))
    draw.box((40, 500), (150, 60), ["the bundle,", "with its probes"])
    draw.arrow((190, 530), (228, 530))
    draw.box((230, 500), (190, 60), ["`whiten verify BUNDLE", "embeds the probes again"])
    draw.arrow((420, 530), (458, 530))
    draw.box((460, 500), (130, 60), ["the same gate", "no PyTorch"])
    draw.arrow((590, 520), (628, 514))
    draw.arrow((590, 540), (628, 546))
    draw.text((636, 518), "exit code 0", "good-text")
    draw.text((636, 551), "exit code 1", "bad-text")
    return draw.svg()


def space() -> str:
    """Return what the id of a space is computed from, what carries it, and what is left out."""
    draw = Drawing(WIDTH, 470, "What decides the coordinates goes into a hash, the id of the space, which files carry")
    draw.text((20, 34), "What decides the coordinates", "title")
    parts = (
        ("SHA-256 of the weights", "of a LoRA adapter too"),
        ("SHA-256 of the tokenizer", ""),
        ("layers and their weights", "pooling, modules, route"),
        ("prompts, the default one", "truncation side"),
        ("the map: method, options,", "SHA-256 of the corpus"),
        ("normalised? int8?", "number of dimensions"),
    )
    for index, lines in enumerate(parts):
        draw.box((20, 50 + 58 * index), (222, 48), [line for line in lines if line], "own")
        draw.line(((242, 74 + 58 * index), (268, 74 + 58 * index)))
    draw.line(((268, 74), (268, 364)))
    draw.arrow((268, 219), (298, 219))
    draw.box((300, 184), (170, 70), ["SHA-256", "its first 16 digits", "are the id"])
    draw.arrow((470, 219), (500, 219))
    draw.line(((500, 74), (500, 364)))

    draw.text((520, 34), "What carries it", "title")
    carriers = (
        ("`whiten.json", "space"),
        ("`FILE.npy.json", "beside vectors"),
        ("`FILE.parquet", "in the schema"),
        ("`FILE.jsonl", "first line, with --header"),
        ("`Coder, Codes", "and their files"),
        ("`GET /info, /metrics", "of whiten serve"),
    )
    for index, (name, where) in enumerate(carriers):
        draw.line(((500, 74 + 58 * index), (520, 74 + 58 * index)))
        draw.box((520, 50 + 58 * index), (220, 48), [name, where])
    draw.text((20, 424), "Not in it", "title")
    draw.text((96, 424), "precision, target (CPU or GPU), outputs, versions, the name,", "faint")
    draw.text((96, 444), "the last bits of the matrix W: they differ between processors", "faint")
    return draw.svg()
