"""Rows as CSV."""

from gpu_fleet_image.core.csv_rows import csv_text


def test_a_truth_value_is_written_as_in_json():
    rows = [{"efa": True, "erdma": False, "owner": None}]

    assert csv_text(["efa", "erdma", "owner"], rows) == "efa,erdma,owner\ntrue,false,\n"
