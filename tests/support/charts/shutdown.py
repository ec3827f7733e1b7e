"""Draw what `whiten serve` does from SIGTERM to its end."""

from support.charts.svg import bar, label, picture
from whiten_serving.settings import Settings

_LEFT, _SECOND, _WIDTH = 200, 13.0, 740


def draw() -> str:
    """Return the time line, with the defaults of --drain and --grace."""
    settings = Settings()
    drain, end = settings.drain, settings.drain + settings.grace
    title = f"After SIGTERM: a drain of {drain:g} s, then at most {settings.grace:g} s for requests that run"
    rows = (
        ("/ready", ((0.0, drain, "other", "503"),)),
        ("new requests", ((0.0, drain, "own", "taken"), (drain, end, "frame", "refused: the sockets are closed"))),
        ("requests that run", ((0.0, end, "own", "may finish"),)),
        ("a load balancer", ((0.0, 2.0, "other", ""), (2.0, end, "frame", "sends to other servers (after 2 s, say)"))),
    )
    elements = [label(16, 25, title, "title")]
    for number, (name, spans) in enumerate(rows):
        y = 44 + 34 * number
        elements.append(label(_LEFT - 10, y + 17, name, anchor="end"))
        for start, stop, kind, words in spans:
            elements.append(bar(_place(start), y, _SECOND * (stop - start) - 2, 24, kind))
            if words:
                elements.append(label(_place(start) + 8, y + 17, words, "light small" if kind == "own" else "small"))
    for second, words in ((0.0, "SIGTERM"), (drain, f"{drain:g} s"), (end, f"{end:g} s")):
        elements.append(f'<path d="M{_place(second):.0f} 38V184" class="grid"/>')
        elements.append(label(_place(second), 200, words, "small faint", "middle"))
    return picture(title, _WIDTH, 216, elements)


def _place(second: float) -> float:
    return _LEFT + _SECOND * second
