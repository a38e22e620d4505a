"""Tables for a terminal of any width: nothing is ever cut, and a pipe gets everything.

If even the narrowest form of a table is wider than the terminal, each row becomes a block of lines.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

LONGEST_WORD = 20
PADDING = 3  # a column's: a space on each side and a line


def console(pipe_width: int) -> Console:
    """Return a console of the width of the terminal, of ``COLUMNS``, or, in a pipe, of the given width."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return Console()
    return Console(width=pipe_width)


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        heading: its heading; line breaks are kept.
        wraps: whether a cell may take several lines, broken between words; a word of more than
            ``LONGEST_WORD`` characters, such as an address, may be broken too.
    """

    heading: str
    justify: Literal["left", "right"] = "left"
    wraps: bool = False


@dataclass
class Listing:
    """A table, or blocks of lines where it does not fit; rows are added one by one.

    Attributes:
        box: its lines; None for none.
    """

    columns: tuple[Column, ...]
    title: str = ""
    box: Box | None = HEAVY_HEAD
    _rows: list[tuple[tuple[str, ...], str, bool]] = field(default_factory=list)

    def add_row(self, *cells: str, style: str = "", end_section: bool = False) -> None:
        """Add a row with one cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self._rows.append((cells, style, end_section))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table where it fits, or else the blocks."""
        if self._narrowest() <= options.max_width:
            yield self._table()
        else:
            yield from self._blocks()

    def _narrowest(self) -> int:
        """Return the table's width when every cell that may wrap does so at each word."""
        width = 1
        for index, column in enumerate(self.columns):
            cells = [column.heading, *(cells[index] for cells, _, _ in self._rows)]
            if column.wraps:
                words = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
                width += min(words, LONGEST_WORD) + PADDING
            else:
                width += max(cell_len(part) for cell in cells for part in cell.split("\n")) + PADDING
        return width

    def _table(self) -> Table:
        table = Table(
            title=self.title or None, title_justify="left", box=self.box, header_style="bold", pad_edge=True
        )
        for column in self.columns:
            table.add_column(
                column.heading, justify=column.justify, no_wrap=not column.wraps, overflow="fold"
            )
        for cells, style, end_section in self._rows:
            table.add_row(*map(Text, cells), style=style or None, end_section=end_section)
        return table

    def _blocks(self) -> Iterator[Text]:
        if self.title:
            yield Text(self.title, style="italic")
        headings = [" ".join(column.heading.split()) for column in self.columns]
        for cells, style, _ in self._rows:
            first, *others = [
                (heading, cell) for heading, cell in zip(headings, cells, strict=True) if cell.strip()
            ]
            yield Text(f"{first[0]}: {first[1]}", style=style or "bold", overflow="fold")
            for heading, cell in others:
                yield Text(f"  {heading}: {cell}", style=style, overflow="fold")
