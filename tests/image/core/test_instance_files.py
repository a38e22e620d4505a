"""Root's small files: what others planted is never followed, waited for, or believed."""

import os
import stat
import tempfile
from pathlib import Path, PurePath
from types import SimpleNamespace

import pytest

from gpu_fleet_image.core.files import LARGEST_READ_BYTES, alone, opened, read_text, replace_text, unsafe
from tests.ran import ran

OTHER_USER = 4242
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")


@pytest.fixture
def secret(tmp_path):
    """A file that no other program should write."""
    path = tmp_path / "secret"
    path.write_text("untouched\n")
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir(mode=0o755)
    return made


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_whole_for_all_to_read_and_read_again(folder):
    replace_text(folder / "ready.json", "one\n")
    replace_text(folder / "ready.json", "two\n")

    assert read_text(folder / "ready.json") == "two\n"
    assert stat.S_IMODE((folder / "ready.json").stat().st_mode) == 0o644
    assert names(folder) == ["ready.json"]


@pytest.mark.parametrize("name", ["ready.json", ".ready.json.unfinished", "ready.unfinished"])
def test_a_planted_link_is_replaced_and_what_it_leads_to_stays(folder, secret, name):
    """The two names beside the file's are those that agent and gate wrote to before."""
    (folder / name).symlink_to(secret)

    replace_text(folder / "ready.json", "report\n")

    assert (secret.read_text(), (folder / "ready.json").read_text()) == ("untouched\n", "report\n")
    assert not (folder / "ready.json").is_symlink()


def test_a_link_in_place_of_the_folder_is_refused(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder)

    with pytest.raises(NotADirectoryError):
        replace_text(tmp_path / "link" / "stop", "go\n")
    assert names(folder) == []


def test_a_write_that_fails_leaves_nothing_behind(folder):
    (folder / "stop").mkdir()

    with pytest.raises(IsADirectoryError):
        replace_text(folder / "stop", "go\n")
    assert names(folder) == ["stop"]


@as_root
@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (0, 0o775, f"group {OTHER_USER} may write in the folder"),  # as it was: for the group of trainers
        (OTHER_USER, 0o755, f"the folder belongs to user {OTHER_USER}"),
    ],
)
def test_root_refuses_a_folder_in_which_others_may_write(folder, secret, owner, mode, why):
    os.chown(folder, owner, OTHER_USER)
    folder.chmod(mode)
    (folder / "stop").symlink_to(secret)

    with pytest.raises(PermissionError, match=why):
        replace_text(folder / "stop", "go\n")
    assert secret.read_text() == "untouched\n"


def directory(owner, mode, group=0):
    return SimpleNamespace(st_uid=owner, st_gid=group, st_mode=stat.S_IFDIR | mode)


@pytest.mark.parametrize(
    ("owner", "group", "mode", "user", "refused"),
    [
        (0, 0, 0o755, 0, False),
        (0, 0, 0o775, 0, False),
        (0, 7, 0o775, 0, True),
        (0, 0, 0o1777, 0, True),
        (7, 7, 0o755, 0, True),
        (7, 7, 0o755, 7, False),
        (7, 7, 0o775, 7, False),
        (7, 7, 0o777, 7, True),
        (8, 7, 0o755, 7, True),
        (0, 0, 0o1777, 7, True),
    ],
)
def test_a_folder_is_safe_where_no_other_user_may_write(owner, group, mode, user, refused):
    assert bool(unsafe(directory(owner, mode, group), user)) is refused


def of_another(file):
    file.write_text('{"ready": false}')
    os.chown(file, OTHER_USER, OTHER_USER)


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (lambda file: file.symlink_to("/etc/hostname"), "symbolic links"),
        (os.mkfifo, "is no regular file"),
        (lambda file: file.write_bytes(bytes(LARGEST_READ_BYTES + 1)), "holds more than"),
        pytest.param(of_another, f"belongs to user {OTHER_USER}", marks=as_root),
    ],
)
def test_what_was_planted_is_neither_read_nor_waited_for(folder, plant, why):
    plant(folder / "activity.json")

    with pytest.raises(OSError, match=why):
        read_text(folder / "activity.json")


def test_a_file_below_a_folder_is_opened(folder):
    (folder / "deep").mkdir()
    (folder / "deep/notes.txt").write_text("hello")

    with opened(folder, PurePath("deep/notes.txt")) as descriptor:
        assert os.read(descriptor, 100) == b"hello"


@pytest.mark.parametrize("way", ["notes.txt", "deep/notes.txt"])
def test_no_link_on_the_way_to_a_file_is_followed(folder, secret, way):
    (folder / "notes.txt").symlink_to(secret)
    (folder / "deep").symlink_to(secret.parent)

    with pytest.raises(OSError), opened(folder, PurePath(way)):  # noqa: PT011 - of the file or of the folder
        pass


@as_root
@pytest.mark.parametrize("left", [False, True], ids=["new", "left by an older image"])
def test_no_user_holds_a_lock_of_roots(left):
    """flock(2) asks for no right to write: who may read a lock could keep root waiting for ever."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)  # as /run/gpu-fleet: others come as far as the lock itself
        lock, beside = Path(made) / "lock", Path(made) / "beside"
        beside.touch(0o644)
        if left:
            lock.touch(0o644)

        with alone(lock):
            pass

        assert held(beside, **ANOTHER).returncode == 0
        refused = held(lock, **ANOTHER)
    assert refused.returncode != 0
    assert "Permission denied" in refused.stderr


ANOTHER = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": ()}


def held(lock, **by):
    """A try to hold a lock."""
    return ran(["flock", "--nonblock", str(lock), "true"], **by)


def test_who_comes_second_waits(folder):
    with alone(folder / "lock"):
        second = held(folder / "lock")

    assert (second.returncode, held(folder / "lock").returncode) == (1, 0)
