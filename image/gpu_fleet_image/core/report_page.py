"""Reports as one HTML file each, which fetches nothing: one style, and tables for any width.

On a narrow screen a row is a block of lines, each value behind the name of its column.
"""

import re
from collections.abc import Collection, Sequence
from html import escape

STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 }
h2 { font-size: 1.3rem; margin-top: 2rem }
.total { font-size: clamp(1.3rem, 4.5vw, 2.2rem); font-weight: 600; line-height: 1.25; margin: .5rem 0 }
.note { color: #555; max-width: 45rem }
/* columns of one width: the last plot of a row is as large as the others */
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(28rem, 100%), 1fr)); gap: 1rem }
figure { margin: 0; max-width: 40rem }
svg { width: 100%; height: auto }
.key { display: inline-block; margin-right: 1.2rem; white-space: nowrap }
.key svg { width: 2.2rem; height: .6rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; vertical-align: baseline; padding: .3rem 1rem .3rem 0 }
th { color: #555 }
tr { border-bottom: 1px solid #ddd; break-inside: avoid }
.id { white-space: nowrap }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
td:last-child:not(.number) { min-width: 14rem; overflow-wrap: anywhere } /* reasons */
@media screen and (max-width: 48rem) {
  thead { display: none }
  tr { display: block; padding: .4rem 0 }
  td { display: grid; grid-template-columns: 9.5rem 1fr; padding: .1rem 0; overflow-wrap: anywhere }
  td:empty { display: none }
  td::before { content: attr(data-column); color: #555; text-align: left }
  td:empty { display: none }
  .id { white-space: normal }
  td:last-child:not(.number) { min-width: 0 }
}
"""


def page(title: str, total: str, note: str, body: str) -> str:
    """Return the file.

    Args:
        total: the report in one line; empty for none.
    """
    line = f'<p class="total">{escape(total)}</p>\n' if total else ""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<main>
<h1>{escape(title)}</h1>
{line}<p class="note">{escape(note)}</p>
{body}
</main>
</html>
"""


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    ids: Collection[str] = (),
) -> str:
    """Return a table.

    Args:
        numbers: heads of the columns that are right-aligned.
    """
    if not rows:
        return "<p>None.</p>"
    kinds = ["number" if head in numbers else "id" if head in ids else "" for head in heads]
    marks = [f' class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(
        f'<th scope="col"{mark}>{escape(text)}</th>' for mark, text in zip(marks, heads, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-column="{escape(head)}"{mark}>{_breakable(text)}</td>'
            for head, mark, text in zip(heads, marks, row, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _breakable(text: str) -> str:
    """Return a text in which an address may break behind its @ and points, so that it widens no column."""
    return re.sub(r"[@.](?=\w)", r"\g<0><wbr>", escape(text)) if "@" in text else escape(text)
