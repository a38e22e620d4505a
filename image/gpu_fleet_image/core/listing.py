"""Tables for a terminal of any width: nothing is ever cut, and a pipe gets everything.

A table that is wider than the terminal folds the cells that may wrap. If that is not enough, it leaves out
the columns that have an order for it, one by one, and a line below names them. If even the rest is too wide,
each row becomes a block of lines with everything.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from gpu_fleet_image.core.shared_options import inert

LONGEST_WORD = 20
HANGING_FROM = 60  # columns of a terminal in which a block's values have room beside their headings
PADDING = 2  # a column's: a space on each side; lines take one more


def console(pipe_width: int) -> Console:
    """Return a console of the width of the terminal, of ``COLUMNS``, or, in a pipe, of the given width."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (columns.isascii() and columns.isdigit()):
        return Console()
    return Console(width=pipe_width)


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        heading: its heading; line breaks are kept.
        wraps: whether a cell may take several lines, broken between words; a word of more than
            ``LONGEST_WORD`` characters, such as an address, may be broken too.
        leaves: the order in which columns leave a table that is too wide, 1 first; 0 for one that stays.
    """

    heading: str
    justify: Literal["left", "right"] = "left"
    wraps: bool = False
    leaves: int = 0


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
        """Add a row with one cell for each column; a cell may hold what others wrote."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self._rows.append((tuple(map(inert, cells)), style, end_section))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table where it fits, without some columns if need be, or else the blocks."""
        shown = list(range(len(self.columns)))
        leaving = sorted(
            (at for at in shown if self.columns[at].leaves), key=lambda at: self.columns[at].leaves
        )
        gone = []
        while self._narrowest(shown) > options.max_width and leaving:
            gone.append(leaving.pop(0))
            shown.remove(gone[-1])
        if self._narrowest(shown) > options.max_width:
            yield from self._blocks(options.max_width)
            return
        yield self._table(shown)
        if gone:
            names = ", ".join(" ".join(self.columns[at].heading.split()) for at in sorted(gone))
            yield Text(
                f"left out at {options.max_width} columns: {names}; a wider one shows all", style="dim"
            )

    def _narrowest(self, shown: Sequence[int]) -> int:
        """Return the width of some columns when every cell that may wrap does so at each word."""
        lines = 0 if self.box is None else 1
        return lines + sum(self._narrowest_of(index) + PADDING + lines for index in shown)

    def _narrowest_of(self, index: int) -> int:
        column = self.columns[index]
        cells = [column.heading, *(cells[index] for cells, _, _ in self._rows)]
        if column.wraps:
            return min(
                max((cell_len(word) for cell in cells for word in cell.split()), default=0), LONGEST_WORD
            )
        return max(cell_len(part) for cell in cells for part in cell.split("\n"))

    def _table(self, shown: Sequence[int]) -> Table:
        table = Table(
            title=self.title or None, title_justify="left", box=self.box, header_style="bold", pad_edge=True
        )
        for column in (self.columns[index] for index in shown):
            table.add_column(
                column.heading, justify=column.justify, no_wrap=not column.wraps, overflow="fold"
            )
        for cells, style, end_section in self._rows:
            row = (Text(cells[index]) for index in shown)
            table.add_row(*row, style=style or None, end_section=end_section)
        return table

    def _blocks(self, width: int) -> Iterator[Text | Table]:
        if self.title:
            yield Text(self.title, style="italic")
        headings = [" ".join(column.heading.split()) for column in self.columns]
        for cells, style, _ in self._rows:
            first, *others = [
                (heading, cell) for heading, cell in zip(headings, cells, strict=True) if cell.strip()
            ]
            yield Text(f"{first[0]}: {first[1]}", style=style or "bold", overflow="fold")
            for heading, cell in others:
                if width < HANGING_FROM:
                    yield Text(f"  {heading}: {cell}", style=style, overflow="fold")
                    continue
                line = Table.grid(padding=(0, 1))  # what wraps continues below the value
                line.add_column(no_wrap=True)
                line.add_column(overflow="fold")
                line.add_row(Text(f"  {heading}:"), Text(cell), style=style or None)
                yield line
