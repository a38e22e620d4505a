"""What Cloud Custodian gets wrong comes out right here; ``bench_reaper`` runs both side by side."""

import pytest

from tests.reaper.custodian_cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_a_verdict_that_another_tool_gets_wrong_is_right(case):
    assert CASES[case]() == []
