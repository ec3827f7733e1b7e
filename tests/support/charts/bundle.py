"""Draw the way of a model to programs: where PyTorch is needed, and where not."""

from support.charts.svg import bar, label, picture

_PROGRAMS = (
    ("Python", "whiten.Encoder"),
    ("HTTP", "whiten serve: OpenAI, TEI, Ollama"),
    ("Node and browsers", "the npm package"),
    ("C, Java, Go, Rust", "onnxruntime of the language"),
)


def draw() -> str:
    """Return the picture: a model, its bundle, and four kinds of programs that open the bundle."""
    title = "A model is exported once, with PyTorch; the bundle runs everywhere without it"
    elements = [
        '<defs><marker id="end" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0 0L9 4L0 8z" class="head"/></marker></defs>',
        '<rect x="16" y="46" width="262" height="214" rx="8" class="frame"/>',
        label(147, 34, "where you export: with PyTorch", "small faint", "middle"),
        '<rect x="300" y="46" width="424" height="214" rx="8" class="frame"/>',
        label(512, 34, "where you embed: without PyTorch", "small faint", "middle"),
        bar(32, 116, 110, 74, "box"),
        label(87, 148, "a model", "title", "middle"),
        label(87, 168, "hub, or a folder", "small faint", "middle"),
        label(195, 128, "whiten-export", "small code", "middle"),
        label(195, 174, "compares with", "small faint", "middle"),
        label(195, 190, "the original", "small faint", "middle"),
        '<path d="M142 153H308" class="line" marker-end="url(#end)"/>',
        bar(310, 110, 120, 86, "own-box"),
        label(370, 138, "a bundle", "title", "middle"),
        label(370, 158, "ONNX, tokenizer,", "small faint", "middle"),
        label(370, 174, "texts that prove it", "small faint", "middle"),
    ]
    for number, (name, how) in enumerate(_PROGRAMS):
        y = 62 + 48 * number
        elements += [
            f'<path d="M430 153C450 153 446 {y + 18} 468 {y + 18}" class="line" marker-end="url(#end)"/>',
            bar(470, y, 240, 38, "box"),
            label(482, y + 16, name, "title"),
            label(482, y + 32, how, "small faint"),
        ]
    return picture(title, 740, 276, elements)
