"""Telling two bakes apart."""

from tests.bench import file_list


def test_content_mode_presence_and_links_are_distinguished_and_named_files_may_differ(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for root in (one, other):
        for folder in ("etc", "var/log"):
            (root / folder).mkdir(parents=True)
        (root / "etc/hosts").write_text("localhost")
        for name in ("same", "link"):
            (root / "etc" / name).symlink_to("hosts")
    (other / "etc/hosts").write_text("elsewhere")
    (other / "etc/link").unlink()
    (other / "etc/link").symlink_to("passwd")
    (one / "etc/only").touch()
    (one / "etc/tool").touch(0o755)
    (other / "etc/tool").touch(0o644)
    (one / "var/log/dpkg.log").touch()

    assert file_list.differences(*map(file_list.listing, (one, other))) == {
        "etc/hosts": "content",
        "etc/link": "content",
        "etc/only": "only in the first",
        "etc/tool": "mode 100755 and 100644",
    }
