"""What stand-ins answer is what Alibaba Cloud documents: each action has its page and the day of reading."""

import re
from pathlib import Path

import pytest

from tests.reaper.alicloud_api import documented, misfit

TESTS = Path(__file__).parents[1]


def answered(action):
    """Whether a stand-in answers it: by a method of its name, or by a key where answers go by action."""
    method = re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower()
    by_key = re.compile(rf'"{action}": |\b{action}=')
    return any(
        re.search(rf"\b{method}\b", text) or ("alicloud_account" in text and by_key.search(text))
        for text in (file.read_text() for file in TESTS.rglob("*.py") if file != Path(__file__))
    )


def test_no_row_is_without_an_answer():
    assert [action for action in documented() if not answered(action)] == []


@pytest.mark.parametrize("action", sorted(documented()))
def test_each_row_names_its_page_and_the_day_it_was_read(action):
    row = documented()[action]

    assert row["page"].startswith(
        ("https://api.alibabacloud.com/document/", "https://www.alibabacloud.com/help/")
    )
    assert action.lower() in row["page"].lower()
    assert row["read"].year >= 2026
    assert row["source"]
    assert row["answer"]


def test_an_answer_that_the_cloud_does_not_give_is_reported_by_its_field():
    answer = {"ScalingGroups": [{"ScalingGroupId": "asg-1", "Desired": 1}]}

    assert misfit("DescribeScalingGroups", ["ScalingGroupIds.1"], answer).endswith("answers no ['Desired']")
    assert "takes no ['GroupIds']" in misfit("DescribeScalingGroups", ["GroupIds.1"], {})
    assert misfit("DescribeScalingGroups", ["Action", "RegionId", "ScalingGroupIds.1"], {}) == ""


def test_an_action_without_a_row_is_answered_nowhere():
    assert misfit("RunInstances", [], {}) == "RunInstances is in no row of alicloud_api.toml"
