"""Missing data and failing calls end no instance; ``bench_reaper`` also runs Cloud Custodian."""

import pytest

from tests.image.controllers.sweep.custodian_cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_missing_data_and_failing_calls_lead_to_no_wrong_verdict(case):
    assert CASES[case]() == []
