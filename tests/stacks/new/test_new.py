"""`gpu-fleet new`: a stack file that `check` accepts, from flags and questions."""

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, regions
from gpu_fleet_stacks.new import command, stack_file
from gpu_fleet_stacks.settings import stack_files
from gpu_fleet_stacks.settings.reference import MODELINE

AWS = (
    *("--cloud", "aws", "--region", "us-east-1", "--account", "123456789012"),
    *("--recipient", "ml@example.com"),
)
ALICLOUD = (
    *("--cloud", "alicloud", "--region", "cn-shenzhen", "--account", "1234567890123456"),
    *("--recipient", "ml@example.com", "--image", "m-wz9abcdefghijklmnopq"),
    *("--kms-instance", "kst-szh66f0000000000000000"),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Create an empty folder for stack files."""
    monkeypatch.setenv("GPU_FLEET_DIR", str(tmp_path))
    return tmp_path


def run(*arguments: str, typed=""):
    """Run `gpu-fleet new`; what is typed has a bar for each line's end."""
    return CliRunner().invoke(main, ["new", *arguments], input=typed.replace("|", "\n"))


@pytest.fixture
def person(monkeypatch):
    """Answer questions at a terminal, as a user does."""
    monkeypatch.setattr(command, "at_terminal", lambda: True)


@pytest.mark.parametrize("flags", [AWS, ALICLOUD], ids=["aws", "alicloud"])
def test_flags_alone_make_a_file_that_check_takes(flags, folder):
    written = run("research", *flags)
    checked = CliRunner().invoke(main, ["check", "research"])

    assert written.exit_code == 0, written.output
    assert "gpu-fleet preflight research" in written.output
    assert checked.exit_code == 0, checked.output
    assert "pools dev (up to 2 " in checked.output


def test_an_account_may_begin_with_zeros(folder):
    for number, account in enumerate(("012345678901", "098765432109", "000000000000", "012345670123")):
        run(f"research-{number}", *AWS, "--account", account)
        assert stack_files.settings_of(f"research-{number}").account_id == account


def test_questions_are_asked_for_what_the_flags_leave_out(folder, person):
    done = run("research", typed="aws|us-east-1|123456789012||||g6.xlarge|4||a@b.org, c@d.org|||")

    assert done.exit_code == 0, done.output
    stack = stack_files.settings_of("research")
    assert (stack.pools[0].types, stack.pools[0].size.max) == (("g6.xlarge",), 4)
    assert stack.budget.recipients == ("a@b.org", "c@d.org")


def test_a_wrong_or_empty_answer_is_asked_for_again_with_what_is_allowed(folder, person):
    wrong = run("research", *AWS[:4], typed="12|123456789012|||||||ml@example.com|||")
    empty = run("another", typed="|aws||us-east-1||123456789012||||||||a@b.org|||")

    assert (wrong.exit_code, empty.exit_code) == (0, 0), wrong.output + empty.output
    assert "--account '12': must be the 12 digits" in wrong.output
    assert "'' is not one of 'aws', 'alicloud'" in empty.output
    assert "--region '': must be a region of aws" in empty.output
    assert empty.output.count("  an answer is needed") == 2  # account, recipients


def test_types_are_suggested_with_their_prices_the_cheapest_first(folder, person):
    done = run("research", *AWS[:6], typed="||||||ml@example.com|||")

    prices = [kind.price.amount_per_hour for kind in stack_file.suggested(Cloud.AWS, "us-east-1")]
    assert prices == sorted(prices)
    assert f"{prices[0]} USD an hour" in done.output


def test_every_wrong_and_missing_flag_is_named_at_once(folder):
    done = run("research", *AWS[:4], "--account", "12", "--zone", "eu-west-1a", "--type", "g5.xlrge")

    for words in (
        "--account '12': must be the 12 digits",
        "--zone 'eu-west-1a': must be a zone of region us-east-1",
        "--type 'g5.xlrge': unknown instance type; the nearest are g5.xlarge",
        "--recipient is missing",
    ):
        assert words in done.output
    assert (done.exit_code, list(folder.iterdir())) == (1, [])


WRONG_FLAGS = {
    (): "--cloud is missing; allowed: aws, alicloud",
    ("--cloud", "aws"): "--region is missing",
    ("--cloud", "aws", "--region", "us-esat-1"): "must be a region of aws, such as",
    (*AWS, "--max-size", "two"): "--max-size 'two': must be a whole number",
    (*AWS, "--max-size", "-3"): "--max-size '-3': must be a whole number from 1 on",
    (*AWS, "--max-size", "0"): "--max-size '0': must be a whole number from 1 on",
    (*AWS, "--kms-instance", "x"): "--kms-instance 'x': is for alicloud only",
    (*AWS, "--type", "p5e.48xlarge"): "in budget.assume: {p5e.48xlarge: ...}; --assume NAME=PRICE writes it",
    (*AWS, "--assume", "40"): "--assume '40': must be NAME=PRICE",
    (*AWS, "--assume", "g5.xlarge=2"): "budget.assume.g5.xlarge = '2': has a list price",
    (*AWS, "--assume", "g5.xlarge=2", "--monthly", "9000"): "budget.assume.g5.xlarge = '2'",
    (*AWS, "--cidr", "10.20.0.1/16"): "--cidr '10.20.0.1/16'",
    (*AWS, "--monthly", "5"): "budget.monthly = 5",
    (*AWS, "--image", "m-1"): "--image 'm-1'",
}
# A name may be too long for a role of AWS, a bucket of both clouds, or beside a pool whose name nobody chose.
TOO_LONG = (("a" * 26, AWS), ("a" * 36, AWS), ("a" * 60, AWS), ("b" * 60, ALICLOUD))


def test_a_wrong_flag_or_name_is_one_message_and_nothing_is_written(folder):
    said = {flags: run("research", *flags) for flags in WRONG_FLAGS}
    of_name, short = run("Research_1", *AWS), run("v", *AWS)

    assert {flags: done.output for flags, done in said.items() if WRONG_FLAGS[flags] not in done.output} == {}
    assert {done.exit_code for done in (*said.values(), of_name)} == {1}
    assert "must be lower case letters, digits and dashes" in of_name.output
    assert "two or more" in short.output
    assert list(folder.iterdir()) == []


def test_a_long_name_of_a_stack_is_its_own_mistake_and_not_the_pools(folder, person):
    said = {name: run(name, *flags).output for name, flags in TOO_LONG}

    assert [name for name, text in said.items() if f"stack = {name!r}: too long" not in text] == []
    assert [text for text in said.values() if "pool" in text] == []
    # before the first question
    assert run("My Lab").output.startswith("error: stack 'My Lab': must be lower case letters")


def test_a_price_that_no_list_has_is_a_flag(folder):
    done = run("research", *AWS, "--type", "p5e.48xlarge", "--assume", "p5e.48xlarge=40.5")

    assert done.exit_code == 0, done.output
    assert str(stack_files.settings_of("research").budget.assume["p5e.48xlarge"]) == "40.5"


def test_a_file_that_is_there_is_never_overwritten(folder):
    (folder / "Pulumi.research.yaml").write_text("mine")

    done = run("research", *AWS)

    assert done.exit_code == 1
    assert "Pulumi.research.yaml already exists; nothing was written" in done.output
    assert (folder / "Pulumi.research.yaml").read_text() == "mine"


@pytest.mark.parametrize("there", ["", "gpu_fleet_stacks/settings/stack.schema.json"])
def test_the_first_line_names_a_schema_that_is_there(there, folder):
    if there:  # the stack folder of a checkout, whichever gpu-fleet runs
        (folder / there).parent.mkdir(parents=True)
        (folder / there).write_text("{}")

    run("research", *AWS)

    first, _, _ = (folder / "Pulumi.research.yaml").read_text().partition("\n")
    assert first == f"{MODELINE}{there or 'stack.schema.json'}"
    assert (folder / first.removeprefix(MODELINE)).is_file()


def test_print_writes_nothing(folder):
    done = run("research", *AWS, "--print")

    assert done.output.startswith(f"{MODELINE}stack.schema.json\n# Stack research, made by `gpu-fleet new`.")
    assert list(folder.iterdir()) == []


@st.composite
def answers(draw):
    """Draw a user's answers, right or wrong."""
    cloud = draw(st.sampled_from(Cloud))
    region = draw(st.sampled_from(regions.of_cloud(cloud)))
    start = stack_file.starting_from("research", cloud, region)
    types = st.sampled_from([kind.name for kind in catalog.load()]) | st.text(max_size=8)
    return stack_file.NewStack(
        **vars(start)
        | {
            "owner": draw(st.text(max_size=10) | st.text("0189e.+-_:xb", min_size=1, max_size=6)),
            "types": tuple(draw(st.lists(types, max_size=2))),
            "recipients": tuple(draw(st.lists(st.text(max_size=8), max_size=2))),
            "account_id": draw(st.sampled_from(["1", "x\n"]) | st.from_regex(r"[089]{12}", fullmatch=True)),
        }
    )


@given(answers())
@settings(max_examples=40, deadline=None)
def test_a_file_says_what_was_answered_or_check_refuses_it(given_answers):
    if stack_file.problems(given_answers):
        return
    stack = stack_file.settings_of(given_answers)
    assert stack.account_id == given_answers.account_id
    assert stack.owner == given_answers.owner
    assert stack.pools[0].types == given_answers.types
    assert stack.budget.recipients == given_answers.recipients
