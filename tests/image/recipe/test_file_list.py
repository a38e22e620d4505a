"""Telling two bakes apart."""

import pytest

from tests.bench import file_list


@pytest.fixture
def roots(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/hosts").write_text("localhost")
        (tmp_path / name / "etc/link").symlink_to("hosts")
    return tmp_path / "one", tmp_path / "other"


def compared(roots):
    return file_list.differences(*[file_list.listing(root) for root in roots])


def test_the_same_files_do_not_differ(roots):
    assert compared(roots) == {}


def test_content_mode_and_presence_are_distinguished(roots):
    root, other = roots
    (other / "etc/hosts").write_text("elsewhere")
    (root / "etc/only").touch()
    (root / "etc/tool").touch(0o755)
    (other / "etc/tool").touch(0o644)

    assert compared(roots) == {
        "etc/hosts": "content",
        "etc/only": "only in the first",
        "etc/tool": "mode 100755 and 100644",
    }


def test_a_link_to_another_place_differs(roots):
    (roots[0] / "etc/link").unlink()
    (roots[0] / "etc/link").symlink_to("passwd")

    assert compared(roots) == {"etc/link": "content"}


def test_named_files_may_differ(roots):
    (roots[0] / "var/log").mkdir(parents=True)
    (roots[0] / "var/log/dpkg.log").touch()

    assert "var/log/dpkg.log" not in compared(roots)
