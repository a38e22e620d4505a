"""Panels of text, amounts and bars as SVG, laid out so that no text leaves its panel. Pure."""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

SIZE, TITLE_SIZE, LINE, TITLE_LINE, PADDING, GAP = 13, 16, 19, 24, 14, 12
BOLD = 1.15 * TITLE_SIZE  # as wide as a title
SPACE = 6  # before amounts and before bars
BAR_HEIGHT = 12
# Upper bounds of widths in parts of the size: DejaVu Sans's, which is wide among the fonts that viewers have.
NARROW, WIDE = frozenset(" !'()*,-./:;I[]fijlrt|"), frozenset("%&@MWmw")
WIDTHS = {"narrow": 0.42, "wide": 1.0, "capital": 0.8, "other": 0.65}
STYLE = """
svg { font: 13px 'DejaVu Sans', Verdana, Arial, sans-serif; background: #fff }
text { fill: #1f2933 }
.title { font-size: 16px; font-weight: 600 }
.head { fill: #52606d }
rect { fill: #fff; stroke: #9aa5b1 }
.frame { fill: #f5f7fa; stroke: #3e6990; stroke-dasharray: 6 4 }
.zone > rect { fill: #e3eef8; stroke: #3e6990 }
.pool > rect { stroke: #1b4332; stroke-width: 1.5 }
.pool .title { fill: #1b4332 }
.route { stroke: #3e6990; stroke-width: 2 }
.bar { fill: #2a6f97; stroke: none }
.bar.over { fill: #b42318 }
.bar.budget { fill: #7b8794 }
"""


@dataclass(frozen=True)
class Bar:
    """One bar of a panel: a label above it, its length as a share of the longest, and its amount."""

    label: str
    share: float
    amount: str
    kind: str = ""


@dataclass(frozen=True)
class Panel:
    """A box of text.

    Attributes:
        kind: CSS class.
        lines: sentences, which wrap.
        amounts: rows of a label and right-aligned cells; the first row has the headings.
    """

    kind: str
    title: str
    lines: Sequence[str] = ()
    amounts: Sequence[tuple[str, ...]] = ()
    bars: Sequence[Bar] = ()


@dataclass(frozen=True)
class Area:
    """The box of a panel on the page."""

    x: float
    y: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.y + self.height


def add(parent: Element, tag: str, text: str | None = None, **attributes: object) -> Element:
    """Append an element; ``_`` in an attribute's name stands for a dash, and one at its end is dropped."""
    named = {key.rstrip("_").replace("_", "-"): _plain(value) for key, value in attributes.items()}
    element = SubElement(parent, tag, named)
    element.text = text
    return element


def _plain(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def width_of(text: str, size: float = SIZE) -> float:
    """Return an upper bound of a text's width."""
    return size * sum(WIDTHS[_breadth(letter)] for letter in text)


def _breadth(letter: str) -> str:
    if letter in WIDE or unicodedata.east_asian_width(letter) in "WF":
        return "wide"
    if letter in NARROW:
        return "narrow"
    return "capital" if letter.isupper() or not letter.isascii() else "other"


def wrap(text: str, width: float, size: float = SIZE) -> list[str]:
    """Break a text between words; a word that is wider than a line is broken itself."""
    lines, line = [], ""
    for word in text.split():
        joined = f"{line} {word}".strip()
        if width_of(joined, size) <= width:
            line = joined
            continue
        *whole, rest = _pieces(word, width, size)
        lines += [line, *whole] if line else whole
        line = rest
    return [*lines, line] if line else lines


def _pieces(word: str, width: float, size: float) -> Iterator[str]:
    piece = ""
    for letter in word:
        if piece and width_of(piece + letter, size) > width:
            yield piece
            piece = ""
        piece += letter
    yield piece


def write(
    parent: Element, lines: Sequence[str], x: float, y: float, *, kind: str = "", step: int = LINE
) -> float:
    """Write lines from the upper edge ``y`` on; return the lower edge."""
    for line in lines:
        y += step
        add(parent, "text", line, x=x, y=y - 5, class_=kind)
    return y


def grid(parent: Element, panels: Sequence[Panel], columns: int, area: Area) -> list[Area]:
    """Draw panels in rows of equal height, from the upper left corner of ``area`` on; return their areas."""
    width, y = (area.width - GAP * (columns - 1)) / columns, area.y
    areas: list[Area] = []
    for start in range(0, len(panels), columns):
        frames, bottoms = [], []
        for index, panel in enumerate(panels[start : start + columns]):
            x = area.x + index * (width + GAP)
            group = add(parent, "g", class_=panel.kind, transform=f"translate({_plain(x)} {_plain(y)})")
            add(group, "title", f"{panel.kind} {panel.title}".strip())
            frames.append((x, add(group, "rect", width=width, rx=6)))
            bottoms.append(_content(group, panel, width))
        for x, frame in frames:
            frame.set("height", _plain(max(bottoms)))
            areas.append(Area(x, y, width, max(bottoms)))
        y = areas[-1].bottom + GAP
    return areas


def _content(group: Element, panel: Panel, width: float) -> float:
    inner = width - 2 * PADDING
    y = write(group, wrap(panel.title, inner, BOLD), PADDING, PADDING / 2, kind="title", step=TITLE_LINE)
    for line in panel.lines:
        y = write(group, wrap(line, inner), PADDING, y)
    y += SPACE if panel.amounts else 0
    for index, (label, *cells) in enumerate(panel.amounts):
        y += LINE
        add(group, "text", label, x=PADDING, y=y - 5, class_="head")
        for column, cell in enumerate(cells, 1):
            right = PADDING + inner * (0.4 + 0.6 * column / len(cells))
            kind = "" if index else "head"
            add(group, "text", cell, x=right, y=y - 5, text_anchor="end", class_=kind)
    y += SPACE if panel.bars else 0
    for bar in panel.bars:
        y += LINE
        add(group, "text", bar.label, x=PADDING, y=y - 5)
        add(group, "text", bar.amount, x=PADDING + inner, y=y - 5, text_anchor="end")
        add(
            group,
            "rect",
            x=PADDING,
            y=y,
            width=inner * bar.share,
            height=BAR_HEIGHT,
            class_=f"bar {bar.kind}",
        )
        y += BAR_HEIGHT + 4
    return y + PADDING
