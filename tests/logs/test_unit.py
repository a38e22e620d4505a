"""What systemd does with the shipper's processes."""

from pathlib import Path

import pytest

from image import logs
from image.logs.lines import OWN_UNIT

UNIT = Path(logs.__file__).parents[1] / "rootfs/etc/systemd/system" / OWN_UNIT


@pytest.mark.parametrize(
    "setting",
    [
        "KillMode=mixed",  # journalctl must not end before the last lines are read
        "Slice=gpu-fleet.slice",  # whose work is no use of the instance
        "OOMPolicy=continue",  # journalctl alone is killed by an entry that is too large
    ],
)
def test_the_unit_says(setting):
    assert setting in UNIT.read_text().splitlines()
