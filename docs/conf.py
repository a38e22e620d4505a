"""Settings of the site that `make docs` builds: pages, commands from click, the library from docstrings."""

import re
import sys
from base64 import b64encode
from pathlib import Path

import click
from sphinx.application import Sphinx

TOP = Path(__file__).resolve().parents[1]
# of this checkout, also where the environment is another's
sys.path[:0] = [str(TOP / room) for room in ("docs", "stacks", "image", "training")]

project = "gpu-fleet"
author = "the gpu-fleet authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["requirements.*", "changes/*"]
nitpicky = True
# types of other packages: their pages need the network, which a build has not
nitpick_ignore_regex = [(r"py:.*", r"(?!gpu_fleet).*")]

default_role = "code"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_mock_imports = ["accelerate", "lightning"]
autoclass_content = "both"  # the arguments stand in __init__
autodoc_typehints = "description"
autodoc_member_order = "bysource"

smartquotes = False  # an option is `--stack`
html_theme = "furo"
html_title = "gpu-fleet"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_js_files = [("narrow.js", {"defer": "defer"})]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False

SPAN = re.compile(r"(`[^`]*`)")
DIRECTIVE = re.compile(r"\s*(\.\. |:\w)")
LINE_BLOCK = "| "
PICTURE = re.compile(r"<!-- picture of ([\w-]+) -->")


def escape(_app: Sphinx, _ctx: click.Context, lines: list[str]) -> None:
    """Escape what help texts mean literally and reStructuredText reads as markup."""
    for number, line in enumerate(lines):
        if not DIRECTIVE.match(line):
            parts = SPAN.split(line)
            parts[::2] = [re.sub(r"([|_*])", r"\\\1", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def show_example(_app: Sphinx, _ctx: click.Context, lines: list[str]) -> None:
    """Show the end of a help text, an example, as code."""
    shown = [line.removeprefix(LINE_BLOCK) for line in lines if line.removeprefix(LINE_BLOCK).strip()]
    if shown:
        lines[:] = [shown[0], "", ".. code-block:: text", "", *(f"   {line.strip()}" for line in shown[1:])]


def add_tables(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the tables of a run's keys to their page."""
    from run_configuration import markdown  # noqa: PLC0415 - found once sys.path is set

    from gpu_fleet.core import config  # noqa: PLC0415 - as above

    if page == "reference/run-configuration":
        source[0] += markdown(config)


def add_picture(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Put a stack's picture where a page has a comment for it; as a data URI, whose style stays inside."""

    def drawn(mark: re.Match[str]) -> str:
        from gpu_fleet_stacks.cost.estimate import estimate  # noqa: PLC0415 - found once sys.path is set
        from gpu_fleet_stacks.picture.stack import picture  # noqa: PLC0415 - as above
        from gpu_fleet_stacks.settings import stack_files  # noqa: PLC0415 - as above

        stack = stack_files.settings_of(mark[1])
        address = f"data:image/svg+xml;base64,{b64encode(picture(stack, estimate(stack)).encode()).decode()}"
        alt = f"The stack {stack.name}: network by zone, pools, storage and budget, with prices"
        image = f'<img src="{address}" alt="{alt}">'
        return f'```{{raw}} html\n<div class="picture" tabindex="0">{image}</div>\n```'

    source[0] = PICTURE.sub(drawn, source[0])


def setup(app: Sphinx) -> None:
    """Connect the above, and hide the commands that only units of an instance call."""
    from gpu_fleet_image.console import cli, table  # noqa: PLC0415 - found once sys.path is set

    with click.Context(cli.main) as context:
        for name in table.SECTIONS[table.INTERNAL]:
            if command := cli.main.get_command(context, name):
                command.hidden = True
    app.connect("source-read", add_tables)
    app.connect("source-read", add_picture)
    app.connect("sphinx-click-process-description", escape)
    app.connect("sphinx-click-process-options", escape)
    app.connect("sphinx-click-process-epilog", show_example)
