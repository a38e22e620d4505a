"""Stack files that cannot be read: one sentence each, and no traceback."""

import pytest

from stacks import stack_files
from stacks.errors import StacksError

UNREADABLE = {
    "a key that is a number": (
        b"config:\n  5: 1\n",
        "config.5: a key must be text, such as 'gpu-fleet:region'",
    ),
    "a file that is not UTF-8": ("config:\n  gpu-fleet:owner: Müller\n".encode("latin-1"), "cannot be read"),
    "a key that stands twice": (
        b"config:\n  gpu-fleet:region: us-east-1\n  gpu-fleet:region: eu-west-1\n",
        "key 'gpu-fleet:region' stands there twice",
    ),
    "a key that stands twice deep in a pool": (
        b"config:\n  gpu-fleet:pools:\n    - name: dev\n      size: {max: 1, max: 8}\n",
        "key 'max' stands there twice",
    ),
    "no mapping": (b"config: 3\n", "'config' must be a mapping of keys to values"),
    "no YAML": (b"config: [", "cannot be read"),
}


@pytest.mark.parametrize(("content", "says"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(content, says, tmp_path):
    path = tmp_path / "Pulumi.odd.yaml"
    path.write_bytes(content)

    with pytest.raises(StacksError) as caught:
        stack_files.config_of(path)

    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_key_may_stand_in_two_mappings(tmp_path):
    path = tmp_path / "Pulumi.two.yaml"
    path.write_text("config:\n  gpu-fleet:pools: [{name: dev}, {name: train}]\n", encoding="utf-8")

    assert stack_files.config_of(path) == {"gpu-fleet:pools": [{"name": "dev"}, {"name": "train"}]}
