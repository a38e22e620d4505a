"""Scripts and units as they lie in the repository, judged by the tools that know them."""

import re
import shutil
from pathlib import Path

import pytest

from gpu_fleet_image.recipe import build_requirements
from gpu_fleet_image.recipe.errors import RequirementError
from gpu_fleet_stacks.payload import user_data
from tests.ran import executable, ran

pytestmark = [pytest.mark.image, pytest.mark.timeout(600)]

IMAGE = Path(__file__).resolve().parents[3] / "image" / "gpu_fleet_image" / "recipe"
UNITS = sorted(path for path in (IMAGE / "rootfs/etc/systemd/system").iterdir() if path.is_file())
SCRIPTS = sorted(
    [
        *IMAGE.glob("*.sh"),
        *(IMAGE / "steps").glob("*.sh"),
        *(
            path
            for path in (IMAGE / "rootfs/usr/libexec/gpu-fleet").iterdir()
            if path.read_text().startswith("#!/usr/bin/env bash")
        ),
    ]
)


@pytest.fixture(scope="session", autouse=True)
def tools():
    try:
        build_requirements.install(build_requirements.CHECK)
    except RequirementError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def instance(tmp_path_factory):
    """A root with our units, and something to run wherever one of them wants a program or other units."""
    root = tmp_path_factory.mktemp("instance")
    shutil.copytree(IMAGE / "rootfs", root, dirs_exist_ok=True)
    units = root / "etc/systemd/system"
    for name in ("sysinit", "basic", "shutdown", "local-fs", "network-online"):
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\nDefaultDependencies=no\n")
    for unit in UNITS:
        for program in re.findall(r"^Exec\w+=(/\S+)", unit.read_text(), flags=re.MULTILINE):
            file = root / program.removeprefix("/")
            executable(file, file.read_text() if file.exists() else "")
    return root


def test_shellcheck_finds_nothing():
    checked = ran(["shellcheck", "--external-sources", "--source-path=SCRIPTDIR", *map(str, SCRIPTS)])

    assert checked.returncode == 0, checked.stdout


def test_a_script_stops_at_its_first_error():
    scripts = [*(IMAGE / "steps").glob("*.sh"), IMAGE / "provision.sh"]

    assert [script for script in scripts if "\nset -euo pipefail\n" not in script.read_text()] == []


def verified(root, *names):
    """What systemd says of units, and whether it accepts them."""
    options = ("--man=no", "--recursive-errors=no", f"--root={root}")
    checked = ran(["systemd-analyze", "verify", *options, *names])
    return checked.returncode, checked.stderr


def test_systemd_accepts_every_unit(instance):
    assert verified(instance, *(unit.name.replace("@.", "@name.") for unit in UNITS)) == (0, "")


def test_systemd_accepts_the_unit_of_the_user_data_and_refuses_one_with_a_typo(instance, tmp_path):
    units = shutil.copytree(instance, tmp_path / "root") / "etc/systemd/system"
    executable(tmp_path / "root" / user_data.PROGRAM.lstrip("/"), "")
    (units / user_data.UNIT).write_text(user_data.UNIT_TEXT)
    (units / "typo.service").write_text(
        user_data.UNIT_TEXT.replace("[Service]", "[Service]\nRemainAfterExt=yes")
    )

    assert verified(tmp_path / "root", user_data.UNIT) == (0, "")
    assert "RemainAfterExt" in verified(tmp_path / "root", "typo.service")[1]


def test_the_trainer_has_time_to_save_within_a_spot_notice():
    unit = (IMAGE / "rootfs/etc/systemd/system/trainer@.service").read_text()

    stop_s = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, flags=re.MULTILINE).group(1))

    assert 90 < stop_s < 120  # the launcher waits 90 s for the last save, EC2 tells 120 s ahead
