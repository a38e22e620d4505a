"""A shell completes commands, stack names, pools and types: by the lines that a page shows."""

from pathlib import Path

from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from tests.ran import ran

ROOT = Path(__file__).parents[3]


def completed(*words: str) -> list[str]:
    """What bash would offer for the last word."""
    environment = {
        "_GPU_FLEET_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("gpu-fleet", *words)),
        "COMP_CWORD": str(len(words)),
    }
    lines = CliRunner().invoke(main, [], env=environment).output.splitlines()
    return [line.partition(",")[2] for line in lines if line]


def test_a_word_is_completed_and_a_wrong_stack_file_completes_nothing_and_says_nothing(tmp_path, monkeypatch):
    offered = {
        ("pre",): ["preflight", "preview"],
        ("catalog", "sh"): ["show"],
        ("check", "aws-"): ["aws-dev", "aws-prod"],
        ("up", "al"): ["alicloud-dev", "alicloud-prod"],
        ("status", "--stack", "aws-d"): ["aws-dev"],
        ("connect", "--stack", "aws-dev", "--pool", ""): ["dev", "spot"],
        ("connect", "--stack", f"{ROOT}/stacks/Pulumi.aws-dev.yaml", "--pool", "d"): ["dev"],
        ("connect", "--stack", "no/Pulumi.nonesuch.yaml", "--pool", ""): [],
        ("connect", "--stack", "nonesuch", "--pool", ""): [],
        ("catalog", "show", "p5.4"): ["p5.48xlarge", "p5.4xlarge"],
        ("train", "prepare", "dig"): ["digits"],
    }

    assert {words: sorted(completed(*words)) for words in offered} == offered
    (tmp_path / "Pulumi.wrong.yaml").write_text("config: {}")
    monkeypatch.setenv("GPU_FLEET_DIR", str(tmp_path))
    assert completed("connect", "--stack", "wrong", "--pool", "") == []


def script(shell: str) -> str:
    return CliRunner().invoke(main, [], env={"_GPU_FLEET_COMPLETE": f"{shell}_source"}).output


def test_the_script_of_a_shell_is_the_one_that_the_page_loads_and_bash_takes_it():
    page = (ROOT / "docs/how-to/stack-files.md").read_text()

    done = ran(["bash", "-euc", f"{script('bash')}\ncomplete -p gpu-fleet"])

    for shell in ("bash", "zsh", "fish"):
        assert f"_GPU_FLEET_COMPLETE={shell}_source gpu-fleet" in page
        assert f"_GPU_FLEET_COMPLETE={shell}_complete" in script(shell)
    assert done.returncode == 0, done.stderr
    assert "gpu-fleet" in done.stdout
