"""Whoever has no credentials reads which ones are missing and what to do, whatever they typed."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.providers.aws import session
from tests.image.console.commands import LEAVES

WORDS = {
    "status": (),
    "explain": ("i-0",),
    "keep": ("2d", "--reason", "x", "--instance", "i-0"),
    "release": ("--instance", "i-0"),
    "report": ("--month", "2026-10"),
    "unfreeze": ("--reason", "x"),
    "connect": (),
    "take": ("dev",),
    "give-back": ("i-0",),
    "poc": ("dev", "--max-usd", "50"),
    "submit": ("--pool", "dev", "run.toml"),
    "runs": (),
    "logs": ("run-1",),
    "cancel": ("run-1",),
    "sweep": (),
    "data put": ("run.toml", "digits"),
    "data get": ("digits",),
    "data list": (),
    "workspace": ("--pool", "dev"),
    "restore": ("runs/tiny", "--from", "s3://gpu-fleet-checkpoints", "--from-region", "us-east-1"),
}
NEEDED = {
    "aws": ("`aws configure sso`", "AWS_PROFILE"),
    "alicloud": ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"),
}


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A laptop on which nobody ever logged in to a cloud; what sessions need beside credentials is there."""
    for name in [each for each in os.environ if each.startswith(("AWS_", "ALIBABA_", "GPU_FLEET_"))]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "GPU_FLEET_INSTANCE_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", "http://127.0.0.1:9")
    for name in ("aws", "session-manager-plugin", "ali-instance-cli"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('[run]\nname = "run-1"\n')
    monkeypatch.setattr(session, "_session", session._session.__wrapped__)
    return monkeypatch


def status():
    return CliRunner().invoke(main, ["status", "--stack", "aws-dev"]).output


def test_every_command_that_asks_a_stack_is_tried_here():
    asking = {path for path, leaf in LEAVES.items() if "stack" in {each.name for each in leaf.params}}

    assert {" ".join(path) for path in asking} == set(WORDS)


@pytest.mark.parametrize("cloud", NEEDED)
@pytest.mark.parametrize("command", WORDS)
def test_who_has_no_credentials_reads_which_are_needed_and_what_to_do(nobody, command, cloud):
    said = CliRunner().invoke(main, [*command.split(), *WORDS[command], "--stack", f"{cloud}-dev"])

    assert said.exit_code == 1
    assert said.output.startswith("error: ")
    for word in NEEDED[cloud]:
        assert word in said.output


def test_a_profile_that_is_none_is_named_and_so_is_one_that_was_tried(nobody):
    nobody.setenv("AWS_PROFILE", "work")
    none = status()
    Path("config").write_text("[profile work]\nregion = us-east-1\n")
    nobody.setenv("AWS_CONFIG_FILE", "config")

    said = "AWS_PROFILE: The config profile (work) could not be found; those of this computer are: none"
    assert none == f"error: {said}\n"
    assert status().endswith("(tried: profile 'work')\n")


@pytest.mark.parametrize("command", ["preflight", "destroy", "image build"])
def test_a_platform_team_reads_the_same_of_its_own_commands(nobody, command):
    said = {}
    for cloud in NEEDED:
        done = CliRunner().invoke(main, [*command.split(), f"{cloud}-prod"])
        said[cloud] = (done.exit_code != 0, " ".join(done.output.split()))

    assert [failed for failed, _ in said.values()] == [True, True]
    for cloud, (_, text) in said.items():
        assert [word for word in NEEDED[cloud] if word not in text] == []
    assert "(tried: profile 'default')" in said["aws"][1]
    assert "the RAM console makes one" in said["alicloud"][1]


ENDPOINT = "AWS_CONTAINER_CREDENTIALS_FULL_URI"  # of an instance, for its users
# Variables and a configuration file, and what is to be read: botocore looks already when a client is made.
OWN_FAULTS = {
    "a program that gives none": (
        {},
        "credential_process = /bin/false",
        ("from custom-process: ", *NEEDED["aws"]),
    ),
    "half a key": ({"AWS_ACCESS_KEY_ID": "A"}, "", ("missing: AWS_SECRET_ACCESS_KEY", *NEEDED["aws"])),
    "a package that is missing": ({}, "login_session = mine", ("botocore[crt]", *NEEDED["aws"])),
    "an endpoint that is down": (
        {ENDPOINT: "http://127.0.0.1:1/x"},
        "",
        ("`systemctl status gpu-credentials`",),
    ),
    "an endpoint that is none": ({ENDPOINT: "http://evil.example/x"}, "", (f"; see {ENDPOINT}",)),
}


@pytest.mark.parametrize("case", OWN_FAULTS)
def test_credentials_that_botocore_cannot_get_are_no_defect(nobody, case):
    variables, line, wanted = OWN_FAULTS[case]
    Path("config").write_text(f"[default]\n{line}\n")
    for name, value in (variables | {"AWS_CONFIG_FILE": "config"}).items():
        nobody.setenv(name, value)

    said = status()

    assert said.startswith("error: ")
    assert "defect" not in said
    assert [word for word in wanted if word not in said] == []
