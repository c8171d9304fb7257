"""One colour-blind-safe palette (after Okabe and Ito), and what each colour becomes on a dark page.

Figures are written in the light colours; the page swaps them by `DARK` when it turns dark, and back for print.
"""

INPUT = "#0b62a8"  # the side that reads
OUTPUT = "#b84a00"  # the side that writes
CONTROL = "#7d858d"
NULL = "#5d6670"
BAND_NEAR = "rgba(93,102,112,0.20)"
BAND_FAR = "rgba(93,102,112,0.10)"
INK = "#1d2329"
GRID = "#e4e7ea"
PAPER = "#fdfdfb"

KINDS = ("#0b62a8", "#b84a00", "#00805a", "#a8457f", "#8a6d00", "#3f9bd1", "#6b46a8", "#5d6670")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
GLYPHS = "●■◆▲▼✚✖★"  # the same symbols in text

SEQUENTIAL = ("#f4f6f7", "#cfdfeb", "#9cc3df", "#5f9ecb", "#2c74ae", "#124f86", "#08305a")
DIVERGING = ("#7a3100", "#b84a00", "#e3a877", "#f4f6f7", "#9cc3df", "#2c74ae", "#08305a")
RAMP = ("#08305a", "#1b5c96", "#2f7fb8", "#5f9ecb", "#8fbbda", "#b4d0e4")

DARK = {
    INPUT: "#6fb6f2", OUTPUT: "#f3a06a", CONTROL: "#8b949d", NULL: "#aab3bc",
    BAND_NEAR: "rgba(170,179,188,0.22)", BAND_FAR: "rgba(170,179,188,0.11)",
    INK: "#e4e7ea", GRID: "#2b3138", PAPER: "#15181c",
    "#00805a": "#4cc79f", "#a8457f": "#e08fbd", "#8a6d00": "#d9b93b", "#3f9bd1": "#9bd3f5", "#6b46a8": "#b79cf0",
    "#f4f6f7": "#1c2127", "#cfdfeb": "#1a3550", "#9cc3df": "#1b507e", "#5f9ecb": "#2b74ae", "#2c74ae": "#4d9ad6",
    "#124f86": "#8cc3ee", "#08305a": "#d6ebfb", "#7a3100": "#ffd9bd", "#e3a877": "#8a4a1c",
    "#1b5c96": "#8cc3ee", "#2f7fb8": "#6fb6f2", "#8fbbda": "#35719f", "#b4d0e4": "#2a587d",
}  # fmt: skip


def kind_style(index: int) -> tuple[str, str, str]:
    """Colour, marker symbol and glyph of the kind at this place of the page; of 64 kinds no two look the same."""
    symbol = (index + index // len(KINDS)) % len(SYMBOLS)
    return KINDS[index % len(KINDS)], SYMBOLS[symbol], GLYPHS[symbol]


def scale(colours: tuple[str, ...]) -> list[list[float | str]]:
    """A Plotly colour scale with even steps."""
    return [[i / (len(colours) - 1), colour] for i, colour in enumerate(colours)]
