"""Tables lose no text at any width of a terminal, and in a pipe."""

import io
import re

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_stacks.advise.__main__ import main as advise
from gpu_fleet_stacks.catalog.command import list_types
from gpu_fleet_stacks.cost.command import cost

COMMANDS: dict[str, tuple[click.Command, tuple[str, ...]]] = {
    "cost": (cost, ("aws-prod",)),
    "cost-of-alicloud": (cost, ("alicloud-prod",)),
    "catalog": (list_types, ()),
    "advise": (advise, ("--params", "7e9", "--batch", "512", "--seq", "2048", "--sources")),
}
# Letters and digits alone: lines, bars and line breaks differ from width to width.
SIGNS = re.compile(r"[^A-Za-z0-9.,]")


def printed(name: str, columns: str) -> str:
    command, arguments = COMMANDS[name]
    done = CliRunner(env={"COLUMNS": columns}).invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def words(text: str) -> set[str]:
    return {word for word in re.findall(r"[\w.,/-]{2,}", text) if re.search(r"\w", word)}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_cut_or_too_wide_at_any_width_or_in_a_pipe(name):
    found = {width: printed(name, str(width)) for width in (60, 80, 120, 200, 1000)}
    wanted, piped = words(found[1000]), printed(name, "")

    for width, text in found.items():
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        squeezed = SIGNS.sub("", text)
        missing = {word for word in wanted if word not in text and SIGNS.sub("", word) not in squeezed}
        # a word that a column folds stands in pieces on several lines, each whole
        whole = {word for word in missing if len(word) <= 20}
        assert not whole or f"left out at {width} columns: " in text, whole
    assert "…" not in piped
    assert {word for word in wanted if len(word) <= 20} <= words(piped)


CELLS = st.text("abcdef0123456789.", min_size=1, max_size=30)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=5), st.integers(30, 200))
def test_a_listing_shows_every_cell_at_every_width(rows, width):
    listing = Listing((Column("name"), Column("amount", "right"), Column("source", wraps=True)), "all")
    for row in rows:
        listing.add_row(*row)
    file = io.StringIO()

    Console(width=width, file=file).print(listing)

    shown = file.getvalue()
    unfolded = re.sub(r"\s", "", shown)
    assert all(cell in shown or cell in unfolded for name, amount, _ in rows for cell in (name, amount))
    assert max(map(len, shown.splitlines())) <= width


def test_a_table_that_is_too_wide_leaves_columns_out_in_their_order_and_names_them():
    columns = (Column("run"), Column("pool", leaves=2), Column("cost", "right"), Column("loss", leaves=1))
    listing = Listing(columns, box=None)
    listing.add_row("digits-1", "train", "4.20 USD", "0.0231")
    shown = {}
    for width in (60, 32, 22, 12):
        Console(width=width, file=(file := io.StringIO())).print(listing)
        shown[width] = [line.split() for line in file.getvalue().splitlines()][:2], file.getvalue()

    assert shown[60][0][0] == ["run", "pool", "cost", "loss"]
    assert shown[32][0][0] == ["run", "pool", "cost"]
    assert shown[22][0][0] == ["run", "cost"]
    assert "left out at 32 columns: loss; a wider one shows all" in " ".join(shown[32][1].split())
    assert "pool, loss" in " ".join(shown[22][1].split())
    assert "0.0231" in shown[12][1]  # blocks have everything


def test_a_row_must_have_a_cell_for_each_column():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Listing((Column("a"), Column("b"))).add_row("x")
