"""The commands of the page about the sweep work, against moto; an agent works in ``test_agent_process``."""

import json
import os
import shlex
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.controllers.meter.meter_state import Day
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.moto_fleet import BUCKET, NOW, REGION, budget_json, client, set_clock, write_policy

PAGE = Path(__file__).parents[4] / "docs/how-to/operate-the-sweep.md"
SHOWN = [line for line in PAGE.read_text().splitlines() if line.startswith("gpu-fleet ") and '"$' in line]
COMMANDS = [f"{line} --help" if line.startswith("gpu-fleet agent ") else line for line in SHOWN]


def test_each_command_of_the_page_works(fleet, tmp_path, monkeypatch):
    day = Day(datetime(2026, 11, 20, tzinfo=UTC), {"dev": Decimal("24.62")})
    key = "reaper/days/2026/11/2026-11-20.json"
    client("s3").put_object(Bucket=BUCKET, Key=key, Body=json.dumps(day.to_json()))
    (tmp_path / "instance.toml").write_text(INSTANCE_TOML)
    values = {
        "INSTANCE": fleet.start()[0],
        "LEDGER": f"s3://{BUCKET}/reaper",
        "POLICY": str(write_policy(tmp_path / "policy.json", budget=budget_json())),
        "REGION": REGION,
        "GPU_FLEET_INSTANCE_FILE": str(tmp_path / "instance.toml"),
        "GPU_FLEET_RUN_DIR": str(tmp_path / "run"),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    set_clock(monkeypatch, NOW)

    done = {
        command: CliRunner().invoke(main, shlex.split(os.path.expandvars(command))[1:])
        for command in COMMANDS
    }

    assert len(done) >= 6
    assert {command: result.output for command, result in done.items() if result.exit_code} == {}
