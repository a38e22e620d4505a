"""The stack of a command, given in any of five ways; and its output for programs."""

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks.plan_check import pulumi_command
from gpu_fleet_stacks.preflight import command as preflight
from gpu_fleet_stacks.preflight.findings import Finding, Rating
from tests.stacks.examples import stack_file


@pytest.fixture
def one(tmp_path, monkeypatch) -> Path:
    """Create a folder with only the stack `lab`."""
    monkeypatch.delenv("GPU_FLEET_STACK", raising=False)
    monkeypatch.setenv("GPU_FLEET_DIR", str(tmp_path))
    write(tmp_path, "lab")
    return tmp_path


FAR = {"region": "eu-west-1", "network": {"cidr": "10.1.0.0/16", "zones": ["eu-west-1a"]}}


def write(folder: Path, name: str, **changes) -> None:
    content = {f"gpu-fleet:{key}": value for key, value in stack_file(**changes).items()}
    (folder / f"Pulumi.{name}.yaml").write_text(yaml.safe_dump({"config": content}))


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == code, done.output
    return done.output


def test_the_only_stack_is_meant_and_of_several_the_environment_a_flag_or_an_argument_names_one(
    one, monkeypatch
):
    assert "lab: OK" in run("check")
    write(one, "far", **FAR)

    assert "STACK is missing: there are far, lab; GPU_FLEET_STACK names one" in run("check", code=2)
    assert "far: OK" in run("check", "-s", "far")
    monkeypatch.setenv("GPU_FLEET_STACK", "far")
    assert "far: OK" in run("check")
    assert "lab: OK" in run("check", "lab")
    assert "lab: OK" in run("check", "--stack", "lab")
    monkeypatch.setenv("GPU_FLEET_STACK", "gone")
    assert "GPU_FLEET_STACK = 'gone': no such stack; there are far, lab" in run("check", code=2)


def test_two_names_are_refused(one):
    assert "two stacks are named, 'lab' and --stack 'other'" in run("check", "lab", "-s", "other", code=2)
    assert "two stacks are named, 'a' and --stack 'b'" in run("status", "a", "-s", "b", code=2)


def test_what_follows_the_dashes_is_never_the_stack(one, monkeypatch):
    asked = []

    def pulumi(_, name, arguments, **__):
        asked.append((name, arguments))
        return 0

    monkeypatch.setattr(pulumi_command, "pulumi", pulumi)

    run("up", "--", "--yes")
    run("up", "lab", "--", "--target", "urn:x")

    assert asked == [("lab", ("--yes",)), ("lab", ("--target", "urn:x"))]


def test_an_output_is_named_with_or_without_the_stack(one, monkeypatch):
    monkeypatch.setattr(pulumi_command, "deployed", lambda name: {"region": f"of {name}"})

    ways = (("lab", "region"), ("region",), ("-s", "lab", "region"))
    assert [run("outputs", *words) for words in ways] == ["of lab\n"] * 3


def test_users_commands_take_the_only_stack_and_the_environments(one, monkeypatch):
    nowhere = run("runs", "--region", "us-east-1", "--cloud", "alicloud", code=1)
    monkeypatch.setenv("GPU_FLEET_STACK", "other")
    other = run("status", code=1)

    assert "which stack" not in nowhere
    assert "stack 'other' has no file here" in other


KEYS = frozenset(
    ["stack", "ok", "error", "problems", "warnings", "cloud", "region", "account_id", "pools", "sold", "cost"]
)


def test_check_says_the_same_keys_to_programs_of_a_sound_and_a_broken_file(one):
    sound, cost = json.loads(run("check", "-o", "json")), json.loads(run("cost", "-o", "json"))
    write(one, "lab", owner="Research (EMEA)")
    broken = json.loads(run("check", "-o", "json", code=1))
    (one / "Pulumi.lab.yaml").write_text("config: [")
    unreadable = json.loads(run("check", "-o", "json", code=1))

    assert {frozenset(each) for each in (sound, broken, unreadable)} == {KEYS}
    assert (sound["ok"], sound["cost"]["currency"]) == (True, "USD")
    assert [problem["key"] for problem in broken["problems"]] == ["owner"]
    assert "cannot be read: line 1, column" in unreadable["error"]
    assert cost["stack"] == "lab"
    assert {"budget", "worst_month", "hour", "month", "month_by_pool", "unknown"} < cost.keys()


def test_check_says_which_types_the_region_is_known_to_sell_and_which_not(one):
    write(one, "far", **FAR)
    sold = {name: json.loads(run("check", name, "-o", "json"))["sold"] for name in ("lab", "far")}

    assert sold == {"lab": {"g5.xlarge": "2026-07-20"}, "far": {"g5.xlarge": None}}
    assert "sold in us-east-1: g5.xlarge (price list of 2026-07-20)" in run("check", "lab")
    assert "sold in eu-west-1: unknown of g5.xlarge; `gpu-fleet preflight` asks" in run("check", "far")


def test_stacks_of_one_account_that_share_a_network_are_warned_of_and_new_proposes_a_free_one(one):
    write(one, "twin")
    write(one, "other", account_id="210987654321")

    said = run("check", "lab")
    proposed = run("new", "next", *NEW, "--print")

    network = stack_file()["network"]["cidr"]
    assert f"warning: network.cidr {network} is also that of stack 'twin': the two can never be" in said
    assert "stack 'other'" not in said
    assert f"cidr: '{network}'" not in proposed
    assert "10.20.0.0/16 is free here" in said
    assert "cidr: '10.20.0.0/16'" in proposed


NEW = (
    *("--cloud", "aws", "--region", "us-east-1", "--account", "123456789012"),
    *("--recipient", "ml@example.com"),
)


ADVISE = ("advise", "--params", "7e9", "--batch", "32", "--seq", "2048", "--top", "3")
LIST = ("catalog", "list", "--gpu", "a10g")
ROWS = {("cost",): None, LIST: "types", ADVISE: "plans", ("preflight",): "findings"}


@pytest.mark.parametrize(("command", "key"), ROWS.items(), ids=lambda words: words and words[0])
def test_rows_are_the_same_as_csv_and_as_json(one, monkeypatch, command, key):
    found = [Finding("image", Rating.FINE, "there"), Finding("=1+1", Rating.FINE, "a formula", "none")]
    monkeypatch.setattr(preflight, "look", lambda _: found)
    document = json.loads(run(*command, "-o", "json"))

    rows = list(csv.DictReader(io.StringIO(run(*command, "-o", "csv"))))

    if key is None:
        worst = sum(Decimal(row["max_high"]) for row in rows)
        assert worst == pytest.approx(Decimal(document["worst_month"]), abs=Decimal("0.05"))
    else:
        words = {None: "", True: "true", False: "false"}
        shown = [
            {name: words[it] if it is None or isinstance(it, bool) else str(it) for name, it in row.items()}
            for row in document[key]
        ]
        assert [{name: it.removeprefix("'") for name, it in row.items()} for row in rows] == shown != []
    assert all(not cell.startswith("=") for row in rows for cell in row.values())


def test_the_page_names_every_key_that_programs_read(one):
    page = (Path(__file__).parents[3] / "docs/reference/json.md").read_text()

    said = {*json.loads(run("check", "-o", "json")), *json.loads(run("cost", "-o", "json"))}
    said |= {*json.loads(run("catalog", "show", "g5.xlarge", "-o", "json"))}
    said |= {*(advice := json.loads(run(*ADVISE, "-o", "json"))), *advice["plans"][0]}
    assert [key for key in said if f"`{key}`" not in page] == []
