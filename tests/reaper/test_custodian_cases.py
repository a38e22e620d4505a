"""Missing data and failing calls end nothing; ``bench_reaper`` puts the same to Cloud Custodian."""

import pytest

from tests.reaper.custodian_cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_missing_data_and_failing_calls_lead_to_no_wrong_verdict(case):
    assert CASES[case]() == []
