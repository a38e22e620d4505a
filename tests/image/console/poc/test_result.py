"""Limits, verdicts, the document and the page of a POC."""

import json
from dataclasses import asdict, fields, replace
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.poc import limits, result_page
from gpu_fleet_image.console.poc.campaign import Stage
from gpu_fleet_image.console.poc.limits import Limit
from gpu_fleet_image.console.poc.measured import PREFIX, Measurement, parse_log
from gpu_fleet_image.console.poc.result import COLUMNS, TEXTS, PocResult, read
from gpu_fleet_image.console.poc.verdicts import RowVerdict, judged
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_jobs.measure.rows import MeasuredRow, print_device, print_row

JSON_PAGE = Path(__file__).parents[4] / "docs/reference/json.md"
LIMITS = {
    "scratch.random_read": Limit(1000, "the buyer"),
    "all_reduce.between_nodes": Limit(40, "the buyer"),
    "gpt2_124m.efficiency_between_nodes": Limit(0.8, "the buyer"),
}
IOPS = Measurement("scratch", "random_read", 1000.0, "IOPS", 1, tool="fio-3.36")
REDUCED = Measurement("all_reduce", "bus_bandwidth", 45.0, "GB/s", 2, 2, 1024, "nccl")
ALONE = Measurement("gpt2_124m", "samples_per_s", 100.0, "samples/s", 1, 1)
TOGETHER = Measurement("gpt2_124m", "samples_per_s", 170.0, "samples/s", 2, 2)
GOOD = (IOPS, REDUCED, ALONE, TOGETHER)
SMALL = {"subject": "gpt_of_two_layers", "stands_for": "gpt2_124m"}
PRICE = Decimal(2)


def change(measurement, **changes):
    return Measurement(**{**asdict(measurement), **changes})


def result(*measurements, **facts):
    rows = tuple(judged(measurements, LIMITS, PRICE, 1))
    known = {"outcome": "complete", "pool": "train", "stack": "test", "device": "H100", "cost_usd": "3.10"}
    return PocResult({**dict.fromkeys(TEXTS, ""), **known, **facts}, 1, (1, 2), ("p5.48xlarge",), rows)


def verdicts(*measurements):
    rows = judged(measurements, LIMITS, PRICE, 1)
    return {(row.subject, row.metric, row.nodes): row for row in rows}


def test_figures_at_their_limits_pass_and_what_follows_from_them_is_judged_too():
    rows = verdicts(*GOOD)

    efficiency = rows["gpt2_124m", "efficiency", 2]
    assert (efficiency.value, efficiency.verdict) == (0.85, RowVerdict.PASS)
    assert rows["scratch", "random_read", 1].verdict is RowVerdict.PASS
    assert rows["gpt2_124m", "samples_per_usd", 2].value == 170 * 3600 / 4
    assert result(*GOOD).passed


CHANGED = {
    "one operation less": (IOPS, {"value": 999.0, "note": "4 disks"}, RowVerdict.FAIL, "", "4 disks"),
    "a reader that may be the limit": (
        *(IOPS, {"value": 999.0, "lower_bound": True}, RowVerdict.UNKNOWN),
        *("at least this; fio-3.36 may itself be the limit, not the disk", ""),
    ),
    "no figure": (IOPS, {"value": None, "note": "O_DIRECT"}, RowVerdict.UNKNOWN, "O_DIRECT", ""),
    "none by the stack's settings": (IOPS, {"value": None, "absent": True}, RowVerdict.NONE, "", ""),
    "a small stand-in": (TOGETHER, SMALL, RowVerdict.NONE, "", ""),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_figure_that_does_not_show_enough_does_not_pass(case):
    measurement, changes, *expected = CHANGED[case]
    changed = change(measurement, **changes)

    row = verdicts(changed)[changed.subject, changed.metric, changed.nodes]

    assert [row.verdict, row.reason, row.note] == expected


def test_a_stand_in_says_nothing_about_the_model_whose_place_it_takes():
    row = verdicts(change(ALONE, **SMALL), change(TOGETHER, **SMALL))["gpt_of_two_layers", "efficiency", 2]

    why = "a small stand-in for gpt2_124m"
    assert (row.value, row.verdict, row.reason) == (0.85, RowVerdict.UNKNOWN, why)


def test_a_limit_about_which_nothing_was_measured_is_unknown_and_keeps_its_unit():
    small = change(REDUCED, size_mib=16)
    unmeasured = {"scratch.random_read": Limit(3000, "x"), "bucket.get": Limit(0.085, "x")}

    row = verdicts(IOPS, small, ALONE, TOGETHER)["all_reduce", "between_nodes", 0]

    assert (row.verdict, row.reason) == (RowVerdict.UNKNOWN, "not measured")
    assert not result(IOPS, small, ALONE, TOGETHER).passed
    assert [row.unit for row in judged((), unmeasured, PRICE, 8)] == ["IOPS", "GB/s"]


def test_one_gpu_alone_has_nothing_to_share_inside_its_instance():
    inside = {"gpt2_124m.efficiency_in_node": Limit(0.9, "the buyer")}

    alone, eight = (judged(GOOD, inside, PRICE, gpus)[-1] for gpus in (1, 8))

    assert (alone.verdict, alone.reason, alone.absent) == (RowVerdict.NONE, "an instance has one GPU", True)
    assert (eight.verdict, eight.reason) == (RowVerdict.UNKNOWN, "not measured")


@given(
    st.lists(st.sampled_from(GOOD), unique=True),
    st.sampled_from([None, 0.0, 10.0, 1e9]),
    st.sampled_from(["complete", "partial", "stopped-at-cap"]),
)
def test_what_is_unknown_missing_or_cut_off_never_passes(measured, value, outcome):
    changed = [change(each, value=value) if each is IOPS else each for each in measured]

    poc = result(*changed, outcome=outcome)

    whole = outcome == "complete" and set(measured) == set(GOOD) and (value or 0) >= 1000
    assert poc.passed == whole
    assert all(row.verdict is not RowVerdict.PASS for row in poc.rows if row.value is None)


GET = '[bucket.get]\nleast = {}\nsource = "x"'
WRONG_LIMITS = {
    "no such table": ("[scrach]\n", "scrach is unknown (nearest: scratch)"),
    "no such figure": ("[scratch]\nreed = 1", "scratch.reed is unknown (nearest: read)"),
    "without a source": (
        "[bucket]\nget.least = 1",
        "bucket.get.source is missing; allowed: a text that is not empty",
    ),
    "no number": (GET.format('"1"'), "bucket.get.least = '1'; allowed: a number from 1e-09 to 1e+18"),
    "not a number": (GET.format("nan"), "bucket.get.least = nan; allowed: a number from"),
    "a number without end": (GET.format("9" * 400), "; allowed: a number from"),
    "lists without end": (f"bucket = {'[' * 2000}", "is no TOML"),
    "an empty source": (GET.replace("x", " ").format(1), "bucket.get.source = ' '"),
    "no TOML": ("[bucket", "is no TOML"),
    "no table": ("bucket = 1", "bucket = 1; allowed: an object"),
}


@pytest.mark.parametrize("case", WRONG_LIMITS)
def test_a_wrong_file_of_limits_is_one_message(case, tmp_path):
    text, message = WRONG_LIMITS[case]
    path = tmp_path / "limits.toml"
    path.write_text(text)

    with pytest.raises(ConfigurationError) as raised:
        limits.load(path)

    assert message in str(raised.value)


def test_each_limit_that_is_shipped_has_an_address_and_is_marked_where_nobody_published_its_case():
    shipped = limits.load(limits.SHIPPED)
    marked = {key for key, limit in shipped.items() if limit.source.startswith("unverified: ")}

    assert [key for key, limit in shipped.items() if "https://" not in limit.source] == []
    assert marked == {"resnet50.efficiency_in_node", "gpt2_124m.efficiency_in_node"}
    poc = replace(result(), rows=tuple(judged(GOOD, shipped, PRICE, 8)))
    assert result_page.page(poc).count("unverified: ") == len(marked)


def test_the_rows_that_instances_print_are_the_rows_that_the_console_reads(capsys):
    row = MeasuredRow("scratch", "read", 1.5, "GB/s", 2, tool="fio-3.36")
    print_device("H100", 8, "nccl", "2.13")
    print_row(row)

    log = parse_log(f"of a library\n{capsys.readouterr().out}{PREFIX}{{cut off")

    assert [asdict(each) for each in log.rows] == [asdict(row)]
    assert (log.device.name, log.device.ranks_per_node) == ("H100", 8)


@given(st.text(max_size=30))
def test_a_line_of_any_text_is_read_or_left_out(text):
    parse_log(PREFIX + text)


def test_a_malformed_row_is_left_out():
    malformed = [
        {"value": "1"},
        {"value": float("nan")},
        {"value": -1},
        {"nodes": 0},
        {"nodes": True},
        {"other": 1},
    ]

    logs = {str(changes): PREFIX + json.dumps({"row": asdict(IOPS) | changes}) for changes in malformed}

    assert [changes for changes, log in logs.items() if parse_log(log).rows] == []


def written(path, poc, **changes):
    path.write_text(json.dumps(poc.to_json() | changes))
    return path


def test_a_document_is_read_as_it_was_written(tmp_path):
    poc = result(*GOOD)

    assert read(written(tmp_path / "poc.json", poc), "--compare").to_json() == poc.to_json()


ROW = judged([IOPS], LIMITS, PRICE, 1)[0].to_json()
STAGE = {"nodes": 1, "run": "", "instances": [], "outcome": ""}
UNREADABLE = {
    "absent": (None, "No such file or directory"),
    "cut off": ("{", "is no JSON"),
    "another document": ("[]", "is no result of `gpu-fleet poc`"),
    "of another version": ({"schema_version": 2}, "schema_version = 2; this release reads 1"),
    "without rows": ({"rows": None}, "is corrupt"),
    "with a row of text": ({"rows": ["x"]}, "is corrupt"),
    "with a figure without a verdict": (
        {"rows": [{key: value for key, value in ROW.items() if key != "verdict"}]},
        "is corrupt: rows[0].verdict is missing",
    ),
    "with a figure of text": ({"rows": [ROW | {"value": "9"}]}, "rows[0].value = '9'; allowed: a number"),
    "with a figure below 0": ({"rows": [ROW | {"value": -1}]}, "rows[0].value = -1; allowed: a number"),
    "with a figure without end": ({"rows": [ROW | {"value": 10**400}]}, "allowed: a number from 0"),
    "with ranks without end": ({"ranks_per_node": float("inf")}, "is corrupt"),
    "with an empty stage": ({"stages": [{}]}, "is corrupt: stages[0].nodes is missing"),
    "with a stage without a list": ({"stages": [STAGE | {"instances": None}]}, "is corrupt"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_document_that_cannot_be_read_is_one_message(case, tmp_path):
    content, message = UNREADABLE[case]
    path = tmp_path / "other.json"
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        written(path, result(*GOOD), **content)

    said = CliRunner().invoke(main, ["poc", "--result", str(path)])

    assert said.exit_code == 1
    assert said.output.startswith(f"error: --result {path}: ")
    assert message in said.output


def test_every_key_of_the_document_is_in_the_reference():
    (line,) = [line for line in JSON_PAGE.read_text().splitlines() if line.startswith("| `poc` |")]
    document = result(*GOOD).to_json()

    keys = {*document, *document["rows"][0], *(field.name for field in fields(Stage))}

    assert {key for key in keys if f"`{key}`" not in line} == set()


def test_two_results_stand_side_by_side(tmp_path):
    here = written(tmp_path / "here.json", result(*GOOD, cloud="aws"))
    slow = [change(each, value=each.value / 2) for each in GOOD]
    there = written(tmp_path / "there.json", result(*slow, cloud="alicloud"))

    said = CliRunner().invoke(main, ["poc", "--result", str(here), "--compare", str(there)])
    rows = CliRunner().invoke(main, ["poc", "--result", str(here), "-o", "csv"]).output.splitlines()

    assert said.exit_code == 0, said.output
    assert "1000 IOPS" in said.output.replace(",", "")
    assert "2.00" in said.output
    assert rows[0] == ",".join(COLUMNS)
    assert rows[1].startswith("scratch,random_read,1,0,0,1000.0,IOPS,pass,1000")


def test_the_page_shows_text_as_text_and_what_a_processor_measured_as_no_proof():
    hostile = change(IOPS, note="<script>alert(1)</script>", value=None)

    page = result_page.page(result(hostile, ALONE, TOGETHER, device="CPU", reason="<b>cut</b>"))

    assert "<script>" not in page
    assert "<b>" not in page
    assert "There is no GPU" in page
    assert "GPT-2 124M, 2 ranks, 2 instances: 85%, pass" in page
