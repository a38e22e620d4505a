"""The picture of a stack: what `cost` says, beside the network and the pools, and no text over another."""

from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from PIL import ImageFont

from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.view import by_pool
from gpu_fleet_stacks.picture import svg
from gpu_fleet_stacks.picture.command import show
from gpu_fleet_stacks.picture.stack import picture
from gpu_fleet_stacks.settings import stack_files
from gpu_fleet_stacks.settings.quantities import Level
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks import test_queue
from tests.stacks.examples import pool, stack, stack_file
from tests.stacks.examples import stack_files as any_file
from tests.stacks.shipped import SHIPPED

SVG = "{http://www.w3.org/2000/svg}"
FONTS = {
    size: ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf" / name, size)
    for size, name in ((svg.SIZE, "DejaVuSans.ttf"), (svg.TITLE_SIZE, "DejaVuSans-Bold.ttf"))
}


def drawn(one):
    return ElementTree.fromstring(picture(one, estimate(one)))


def texts(group):
    return [text.text for text in group.findall(f"{SVG}text")]


def panels(root, kind):
    return [group for group in root.iter(f"{SVG}g") if group.get("class") == kind]


def boxes(group):
    """Return left, right and baseline of each text of a panel, as DejaVu Sans has it."""
    for text in group.findall(f"{SVG}text"):
        font = FONTS[svg.TITLE_SIZE if text.get("class") == "title" else svg.SIZE]
        width, x = font.getlength(text.text), float(text.get("x"))
        left = x - width if text.get("text-anchor") == "end" else x
        yield left, left + width, float(text.get("y"))


def assert_readable(root):
    for group in [each for each in root.iter(f"{SVG}g") if each.find(f"{SVG}rect") is not None]:
        frame = group.find(f"{SVG}rect")
        wide, high = float(frame.get("width")), float(frame.get("height"))
        held = list(boxes(group))
        assert all(left >= 0 and right <= wide and y < high for left, right, y in held), texts(group)
        for one, other in combinations(held, 2):
            apart = one[1] <= other[0] or other[1] <= one[0] or abs(one[2] - other[2]) >= svg.SIZE
            assert apart, texts(group)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_pool_has_its_name_types_and_cost_and_budget_and_worst_month_are_bars_of_one_scale(name):
    one = stack_files.settings_of(name)
    cost, root = estimate(one), drawn(one)

    groups, [bars] = panels(root, "pool") + panels(root, "shared"), panels(root, "budget")

    for (pool_name, lines), group in zip(by_pool(cost), groups, strict=True):
        title, *said = texts(group)
        assert title == (pool_name if lines[0].pool else "Shared by all pools")
        for span in (cost.hour, cost.month):
            assert f"{span(Level.NOW, lines).expected.amount:,.2f}" in said
            assert f"{span(Level.MAX, lines).worst.amount:,.2f}" in said
    for each, group in zip(one.pools, groups, strict=False):
        assert all(any(kind in line for line in texts(group)) for kind in each.types)
    _, worst, budget = (float(bar.get("width")) for bar in bars.findall(f"{SVG}rect")[1:])
    share = float(cost.worst_month.amount) / one.budget.monthly
    assert worst / budget == pytest.approx(share, rel=0.01)


def test_each_nat_gateway_has_a_route_and_is_named_in_its_zone():
    network = {"cidr": "10.0.0.0/16", "zones": ["us-east-1a", "us-east-1b"]}
    for nat, routes in (("one", 1), ("per_zone", 2)):
        assert len(list(drawn(stack(network=network | {"nat": nat})).iter(f"{SVG}line"))) == routes


@settings(max_examples=15, deadline=None)
@given(any_file())
def test_no_text_leaves_its_panel_or_meets_another(content):
    assert_readable(drawn(from_mapping("any", content)))


def test_wide_names_and_many_types_stay_readable():
    types = ["g5.xlarge", "g6.xlarge", "g4dn.xlarge", "g5.2xlarge"]
    for many in (1, 6):
        pools = [pool(name=f"{'mw' * 8}{index}", types=types, size={"max": 9_999}) for index in range(many)]

        root = drawn(stack(pools=pools, owner="W" * 120))

        assert len(panels(root, "pool")) == many
        assert_readable(root)


def test_a_queue_and_a_price_that_nobody_knows_are_named():
    root = drawn(test_queue.ALICLOUD.stack(queue="slurm"))

    said = texts(panels(root, "shared")[0])
    assert "of it queue" in said
    assert said[said.index("of it logs") + 1 :][:2] == ["unknown", "unknown"]


def test_the_command_draws_a_file_of_a_folder_and_says_where(tmp_path):
    config = {f"gpu-fleet:{key}": value for key, value in stack_file().items()}
    file = tmp_path / "Pulumi.mine.yaml"
    file.write_text(yaml.safe_dump({"config": config}))
    target = tmp_path / "mine.svg"

    done = CliRunner().invoke(show, [str(file), "-o", str(target)])

    assert done.exit_code == 0, done.output
    assert done.output == f"{target}\n"
    assert ElementTree.parse(target).findtext(f"{SVG}title") == "GPU fleet mine: AWS us-east-1"


def test_a_file_that_cannot_be_written_or_is_not_named_as_an_svg_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    nowhere, other = (CliRunner().invoke(show, ["aws-dev", "-o", file]) for file in ("none/a.svg", "json"))

    cannot = "--output = 'none/a.svg': cannot be written: No such file or directory"
    assert str(nowhere.exception) == cannot
    assert "'-o' / '--output': 'json'; allowed: a file whose name ends in .svg" in other.output
    assert list(tmp_path.iterdir()) == []
