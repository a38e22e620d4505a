"""What systemd does with the shipper's processes."""

from pathlib import Path

from gpu_fleet_image.instance import logs
from gpu_fleet_image.instance.logs.lines import OWN_UNIT

UNIT = Path(logs.__file__).parents[2] / "recipe/rootfs/etc/systemd/system" / OWN_UNIT


SETTINGS = {
    "KillMode=mixed",  # journalctl must not end before the last lines are read
    "Slice=gpu-fleet.slice",  # whose work is no use of the instance
    "OOMPolicy=continue",  # journalctl alone is killed by an entry that is too large
}


def test_the_unit_ends_after_the_last_lines_is_no_use_and_survives_a_large_entry():
    assert SETTINGS - set(UNIT.read_text().splitlines()) == set()
