"""Rows as CSV."""

import pytest

from gpu_fleet_image.core.csv_rows import csv_text


@pytest.mark.parametrize("name", ["=1+1", "@SUM(A1)", "-1+cmd|' /C calc'!A0", "\t=1+1", "\r=1+1"])
def test_a_name_that_a_spreadsheet_would_calculate_is_a_text(name):
    written = csv_text(["name"], [{"name": name}, {"name": "-1.5"}])

    assert written.startswith(("name\n'", "name\n\"'"))
    assert written.endswith("\n-1.5\n")


def test_a_truth_value_is_written_as_in_json():
    rows = [{"efa": True, "erdma": False, "owner": None}]

    assert csv_text(["efa", "erdma", "owner"], rows) == "efa,erdma,owner\ntrue,false,\n"
