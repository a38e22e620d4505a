"""What several tests of the reaper stand on."""

import pytest

from tests.reaper.live import live_aws


@pytest.fixture
def live(tmp_path):
    """A stack in moto, real agents, the function's own handler, one clock."""
    with live_aws(tmp_path) as made:
        yield made
