"""`work`: an instance's tries of a submitted run; `pack`: the files that it refuses to send."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet.cli import main
from gpu_fleet.core.errors import CheckpointError, CommandError, ConfigError
from gpu_fleet_jobs.submitted import command_line, included, work
from gpu_fleet_jobs.submitted.figures import RunFigures
from gpu_fleet_jobs.submitted.pack import archive
from gpu_fleet_jobs.submitted.work import Job, Reporter, Worker, fetched, unpack

COUNTS = "import pathlib, sys; f = pathlib.Path('tries'); f.open('a').write('x'); sys.exit({status})"


class Bucket:
    """An ObjectStore in a dictionary; it may be silent."""

    uri = "s3://records/runs/jobs/ada/digits-1"

    def __init__(self, **objects: bytes) -> None:
        self._objects = {name.replace("__", "."): content for name, content in objects.items()}
        self.silent = False

    @property
    def objects(self) -> dict[str, bytes]:
        if self.silent:
            raise CheckpointError("no answer")
        return self._objects

    def put(self, name: str, content: bytes) -> None:
        self.objects[name] = content

    def get(self, name: str, file: Path | None = None) -> bytes | None:
        content = self.objects.get(name)
        if file is None or content is None:
            return content
        file.write_bytes(content)
        return b""

    def sizes(self, folder: str) -> dict[str, int]:
        root = f"{folder}/" if folder else ""
        found = {name: len(content) for name, content in self.objects.items() if name.startswith(root)}
        return {name.removeprefix(root): size for name, size in found.items()}

    @property
    def state(self) -> dict[str, object]:
        return dict(json.loads(self.objects["state.json"]))


@pytest.fixture
def bucket() -> Bucket:
    """Return the bucket of the job and of the instance's reports."""
    return Bucket()


def worker(bucket: Bucket, folder: Path, code: str, while_paused=lambda: None) -> Worker:
    """Return a worker whose clock advances only in pauses."""
    job = Job(0, 1, "10.0.0.4", ("run", "--", sys.executable, "-c", code), "", "0" * 64)
    passed = [0.0]

    def pause(seconds: float) -> None:
        passed[0] += seconds
        while_paused()

    return Worker(job, folder, bucket, Reporter(bucket), clock=lambda: passed[0], pause=pause)


def tries(folder: Path) -> int:
    return len((folder / "tries").read_text())


@pytest.mark.parametrize(
    ("status", "count", "phase", "detail"),
    [
        (3, 3, "failed", "ended with 3"),  # which may pass
        (0, 1, "finished", ""),
        (85, 1, "stopped", ""),
        (2, 1, "failed", "ended with 2"),
        (65, 1, "failed", "ended with 65"),
    ],
)
def test_what_fails_perhaps_is_tried_three_times_and_what_is_over_once(
    *, status, count, phase, detail, bucket, tmp_path
):
    made = worker(bucket, tmp_path, COUNTS.format(status=status))

    assert made.run() == status

    assert tries(tmp_path) == count
    assert made.clock() == (count - 1) * work.PAUSE_S
    assert (bucket.state["phase"], bucket.state["detail"]) == (phase, detail)


def test_a_cancelled_run_and_one_that_gets_a_signal_between_two_tries_are_not_tried_again(bucket, tmp_path):
    """The unit of a cancelled run does not fail."""
    for folder in (cancelled := tmp_path / "cancelled", notified := tmp_path / "notified"):
        folder.mkdir()
    fails = COUNTS.format(status=3)

    assert worker(bucket, notified, fails, lambda: signal.raise_signal(signal.SIGTERM)).run() == 3
    assert worker(bucket, cancelled, fails, lambda: bucket.put("cancel", b"{}")).run() == 0

    assert (tries(cancelled), tries(notified)) == (1, 1)
    assert bucket.state["phase"] == "cancelled"


def log_of(bucket: Bucket) -> list[bytes]:
    return [bucket.objects[name] for name in sorted(bucket.objects) if name.startswith("log/")]


def test_a_bucket_that_does_not_answer_ends_no_run_and_hears_the_whole_log_later(bucket, tmp_path):
    reporter, file = Reporter(bucket), tmp_path / "log.txt"
    file.write_text("one\n")
    reporter.send(file)
    bucket.silent = True
    file.write_text("one\ntwo\n")
    reporter.send(file)
    reporter.say("running")
    bucket.silent = False

    reporter.send(file)

    assert log_of(bucket) == [b"one\n", b"two\n"]


def test_a_log_that_the_program_empties_is_sent_on_from_its_new_beginning(bucket, tmp_path):
    """As `echo done >/dev/stderr` does in a script whose errors are that file."""
    reporter, file = Reporter(bucket), tmp_path / "log.txt"
    for text in ("first try\n", "new\n", "new\nlines\n", "", "end\n"):
        file.write_text(text)
        reporter.send(file)

    assert log_of(bucket) == [b"first try\n", b"new\n", b"lines\n", b"end\n"]


def test_samples_of_before_are_told_apart_from_those_of_this_run(tmp_path):
    def log(**record):
        with (tmp_path / "metrics.jsonl").open("a") as opened:
            opened.write(json.dumps({"kind": "train", **record}) + "\n")

    log(step=9, samples=900)
    figures = RunFigures(tmp_path, lambda: 0.0)
    log(step=12, samples=1200, samples_per_s=2.0, tokens_per_s=64.0)

    newest = figures.newest()

    assert (newest["samples"], newest["samples_before"], newest["tokens_per_sample"]) == (1200, 900, 32.0)
    assert RunFigures(tmp_path / "new", lambda: 0.0).newest()["samples"] is None


def submitted(**more: object) -> dict[str, object]:
    instances = [{"id": "i-0", "address": "10.0.0.4"}, {"id": "i-1", "address": "10.0.0.5"}]
    job = {"instances": instances, "arguments": ["launch", "x.toml"], "directory": "runs/x"}
    return {**job, "archive_sha256": "0" * 64, **more}


def test_an_instance_takes_the_job_that_names_it_with_the_hash_that_it_was_given():
    content = json.dumps(submitted()).encode()
    sha256 = hashlib.sha256(content).hexdigest()

    job = fetched(Bucket(job__json=content), sha256, "i-1")

    assert (job.rank, job.nodes, job.host) == (1, 2, "10.0.0.4")
    with pytest.raises(CommandError, match="the run is for i-0, i-1, and this is i-2"):
        fetched(Bucket(job__json=content), sha256, "i-2")
    for other in (Bucket(job__json=content + b" "), Bucket()):
        with pytest.raises(CommandError, match="is not the job that this instance was asked to start"):
            fetched(other, sha256, "i-1")


def zipped(**contents: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, text in contents.items():
            file.writestr(name, text)
    return packed.getvalue()


def job_with(content: bytes) -> Job:
    return Job(0, 1, "", ("launch",), "", hashlib.sha256(content).hexdigest())


def test_an_archive_that_leaves_its_folder_is_none_or_another_is_refused(tmp_path):
    """A link becomes a file without a target."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc")
        file.writestr("link2/x", "y")
    for content, message in {
        zipped(**{"../x": "y"}): "'../x' leaves the run's folder",
        zipped(**{"/etc/x": "y"}): "'/etc/x' leaves the run's folder",
        b"no archive": "cannot be unpacked",
    }.items():
        with pytest.raises(CommandError, match=message):
            unpack(Bucket(files__zip=content), job_with(content), tmp_path / "run")
    with pytest.raises(CommandError, match="is not what the job names"):
        unpack(Bucket(files__zip=archive({"a": b"b"})), job_with(b"another"), tmp_path / "run")

    unpack(Bucket(files__zip=packed.getvalue()), job_with(packed.getvalue()), tmp_path / "run")

    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"run/link", "run/link2/x"}
    assert not (tmp_path / "run/link").is_symlink()
    assert (tmp_path / "run/link").read_text() == "/etc"


NAMES = st.text("ab./\\~:", min_size=1, max_size=9)
WHOLE = archive({"a/b.toml": b"one" * 50, "c.py": b"two" * 30}, ["c.py"])
SPOILT = st.dictionaries(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), max_size=4)


@settings(max_examples=60, deadline=None)
@given(names=st.lists(NAMES, max_size=4), spoilt=SPOILT)
def test_whatever_an_archive_holds_nothing_lies_outside_of_its_folder(names, spoilt):
    changed = bytearray(WHOLE)
    for place, byte in spoilt.items():
        changed[place] = byte
    with tempfile.TemporaryDirectory() as above:
        for content in (zipped(**dict.fromkeys(names, "x")), bytes(changed)):
            with suppress(CommandError):
                unpack(Bucket(files__zip=content), job_with(content), Path(above) / "run")

        assert {path.name for path in Path(above).iterdir()} <= {"run"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Create the folder from which a user submits, and change to it."""
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "data/a").write_text("b")
    (folder / "train.py").write_text("print()")
    (tmp_path / "secret.txt").write_text("s")
    monkeypatch.chdir(folder)
    return folder


def packed(here, *words):
    return CliRunner().invoke(main, ["pack", "--out", str(here.parent / "out.zip"), *words])


def test_a_command_takes_the_files_it_names_and_says_how_it_is_run(here):
    said = packed(
        here, "--include", "data", "--checkpoints", "out", "--", "python", "train.py", "data", "--lr", "1"
    )

    assert said.exit_code == 0, said.output
    assert json.loads(said.output) == {
        "arguments": ["run", "--checkpoints", "out", "--", "python", "train.py", "data", "--lr", "1"],
        "directory": "out",
        "title": "out",
        "files": ["data/a", "train.py"],
        "left_out": [],
        "secrets": [],
        "elsewhere": [],
    }


def test_a_program_that_could_be_started_here_can_be_started_there(here, tmp_path):
    (here / "train.sh").write_text("#!/bin/sh\nexit 7\n")
    (here / "train.sh").chmod(0o700)
    assert packed(here, "--", "./train.sh", "train.py").exit_code == 0
    content = (tmp_path / "out.zip").read_bytes()

    unpack(Bucket(files__zip=content), job_with(content), tmp_path / "run")

    assert subprocess.run(["./train.sh"], cwd=tmp_path / "run", check=False).returncode == 7
    assert not os.access(tmp_path / "run/train.py", os.X_OK)


def files_of(said):
    assert said.exit_code == 0, said.output
    return json.loads(said.output)["files"]


def test_links_of_an_included_folder_travel_as_what_they_lead_to(here):
    (here / "data/linked").symlink_to(here / "other")
    (here / "other").mkdir()
    (here / "other/b").write_text("c")
    (here / "other/itself").symlink_to(here / "other")

    assert files_of(packed(here, "--include", "data", "--", "ls")) == ["data/a", "data/linked/b"]


NOT_MEANT = (
    *(".git/config", ".env", "conf/prod.env", "conf/Credentials.json", "keys/id_ed25519", "keys/server.pem"),
    *(".aws/config", "src/__pycache__/x.pyc", "my-venv/pyvenv.cfg", "my-venv/lib/x.py"),
)


def lay(here, *names):
    for name in names:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("s")


def test_repositories_environments_caches_and_secrets_of_a_folder_stay_here_and_are_named(here):
    lay(here, *NOT_MEANT, "conf/train.yaml", "src/secrets.py", "data/id_to_label.csv")

    said = packed(here, "--include", ".", "--", "ls")

    kept = ["conf/train.yaml", "data/a", "data/id_to_label.csv", "src/secrets.py", "train.py"]
    assert files_of(said) == kept
    assert json.loads(said.output)["left_out"] == [
        *(".aws", ".env", ".git", "conf/Credentials.json", "conf/prod.env", "keys/id_ed25519"),
        *("keys/server.pem", "my-venv", "src/__pycache__"),
    ]


MORE_SECRETS = (
    *("rclone.conf", ".config/gcloud/access_tokens.db", ".cache/huggingface/token", "token", "hf_token"),
    *(".vault-token", ".databrickscfg", ".dockercfg", "terraform.tfstate", "a.tfvars", "kubeconfig"),
    *(".my.cnf", "service-account.json", "secret.yaml", "store.jks", ".bash_history", "prod.env.bak"),
    "mamba/conda-meta/x",
    *("client_secret.json", "client_secret_1-a.apps.googleusercontent.com.json", "client_secrets.json"),
    *("token.json", "hf_token.txt", "token.pickle", "gcp-key.json", "gcs_key.json", "sa-key.json"),
    *("my-service-account-1.json", "x-firebase-adminsdk-1.json", "api_key.txt", "openai-api-key"),
    *("wandb_apikey.json", "apiKeys.yaml", "aws_credentials.csv", "new_user_credentials.csv"),
    *("user_credentials.ini", "aws_credentials", "credential.json", "rootkey.csv", "rootkey (1).csv"),
    *("accessKeys.csv", "bob_accessKeys.csv", "AccessKey.csv", "access_key.txt", "office.ovpn"),
    *(".Renviron", "app-secret.yaml", "db_secrets.toml", "secrets", "db_password.txt", "ssh_private_key"),
    *("vault.kdbx", ".netrc", ".pypirc", ".cdsapirc", ".passwd-s3fs", ".smbcredentials", "bob.keytab"),
    "AuthKey_1.p8",
    *(
        ".env~",
        ".env-prod",
        "env.prod",
        ".netrc.bak",
        "api_key.txt.old",
        "my_id_rsa",
        "deploy_rsa",
        "ssh_key",
    ),
    *("github_deploy_key", "passwd", "passwords.txt", ".vault_pass", "terraform.tfvars.json", "auth.json"),
    *("kubeconfig.yaml", ".dockerconfigjson", "github_pat.txt", "cookies.txt", "my.cnf", "wallet.dat"),
    *(".env copy", ".env - Copy (2)", ".env(1)", ".netrc copy 2", "kaggle (1).json", "credentials copy.json"),
    *("#.env#", "id_rsa (1)"),
    *("wandb_key.txt", "openai-key", ".terraformrc", "pip.conf", ".gitconfig", "gha-creds-1a.json"),
)
NO_SECRETS = (
    *("tokens.bin", "tokenizer.json", "token.py", "keys.txt", "environment.yaml", "secretary/a.csv"),
    *("token_counts.csv", "tokens.json", "added_tokens.json", "special_tokens_map.json"),
    *("token_embeddings.pt", "tokens.txt", "tokenizer_config.json", "keys.py", "secrets_test.py"),
    *("api_key.py", "client_secret.py", "answer_key.json", "foreign_key.csv", "keypoints.json"),
    *("monkey.json", "keys.json", "key.csv", "key_frames.txt", "victorias_secret.csv", "secretary.txt"),
    *("passwords.csv", "credentialing.csv", "turkey.csv", "access_log.csv", "renviron.R"),
    *("carbon copy.txt", "photocopy.json", "train (1).csv", "#tags.csv"),
    *("accessibility.csv", "rootkeys.npy", "service_accounting.csv", "secret_santa.csv", "wsa-key.bin"),
)


@pytest.mark.parametrize(("names", "travel"), [(MORE_SECRETS, False), (NO_SECRETS, True)])
def test_the_names_of_secrets_are_known_and_like_ones_are_none(here, names, travel):
    lay(here, *names)

    files = files_of(packed(here, "--include", ".", "--", "ls"))

    assert [name for name in names if (name in files) is not travel] == []


# As those who give them out write them; put together here, so that no scanner takes this file for a leak.
KEYS = {
    "notes.txt": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "mine.asc": "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----",
    "cloud.json": '{"id": "AKIA' + 'Q3EGRIOP7H4TLM2C"}',
    "ali": "LTAI" + "5tQ8vZ2mXr7KpWc3",
    "setup.sh": "export HF=hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7",
    "ci.yaml": "token: ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "llm.ini": "key=sk-proj-" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "claude.yaml": "sk-ant-" + "api03-a1B2c3D4e5F6g7H8_i9J0k1L2-m3N4o5P6q7R8",
    "nim.yaml": "nvapi-" + "a1B2c3D4e5F6g7H8_i9J0k1L2-m3N4o5P6q7R8",
    "runs.yaml": "wandb_v1_" + "a1B2c3D4e5F6g7H8i9J0k1L2",
    "hub.ini": "dckr_pat_" + "a1B2c3D4e5F6g7H8_i9J0k1L2-m",
    "node.ini": "npm_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "index.ini": "pypi-" + "AgEIcHlwaS5vcmcCJDEyMzQ1Njc4LWFiY2QtZWZn",
    "graph.ini": "glsa_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6_1a2b3c4d",
}


def test_a_file_with_a_key_in_it_stays_here_whatever_its_name_unless_it_is_included_by_itself(here):
    for name, text in KEYS.items():
        (here / name).write_text(f"# mine\n{text}\n")
    (here / "README.md").write_text("AKIA" + "IOSFODNN7EXAMPLE")

    whole = packed(here, "--include", ".", "--", "ls")
    named = packed(here, "--include", "notes.txt", "--", "ls")

    assert json.loads(whole.output)["left_out"] == sorted(KEYS)
    assert "README.md" in files_of(whole)
    assert files_of(named) == json.loads(named.output)["secrets"] == ["notes.txt"]


@pytest.mark.parametrize("name", [".env", ".git", "keys/server.pem", "my-venv"])
def test_what_is_included_by_its_own_name_travels(here, name):
    lay(here, *NOT_MEANT)

    said = packed(here, "--include", name, "--include", ".", "--", "ls")

    files = files_of(said)
    assert any(file.startswith(name) for file in files)
    assert json.loads(said.output)["secrets"] == [file for file in files if file in NOT_MEANT[1:6]]
    assert name not in json.loads(said.output)["left_out"]


@pytest.mark.parametrize(
    ("lay_out", "message"),
    [
        (
            lambda data: (data / "/".join("d" * 300)).mkdir(parents=True),
            "--include = '.': more than 100 folders within one another",
        ),
        (lambda data: (data / os.fsdecode(b"\xff")).touch(), "'data/\\udcff': its name is not UTF-8"),
        *(
            (
                lambda data, to=to: (data / "out").symlink_to(to),
                "--include = '.': 'data/out' is a link that leads out of {here}",
            )
            for to in ("/etc/hosts", "../..", "../../mine/../..")
        ),
    ],
    ids=["folders without end", "no UTF-8", "a file elsewhere", "above", "above by a way around"],
)
def test_what_no_archive_can_hold_or_leads_out_is_refused_by_its_name(lay_out, message, here):
    lay_out(here / "data")

    said = packed(here, "--include", ".", "--", "ls")

    assert said.exit_code == 65
    assert message.format(here=here) in said.output


def test_links_to_what_stays_here_or_is_not_there_stay_here(here):
    lay(here, *NOT_MEANT)
    links = {"plain": "../.env", "more": "../.git/config", "gone": "x", "itself": "itself"}
    for name, leads_to in links.items():
        (here / "data" / name).symlink_to(leads_to)

    said = packed(here, "--include", "data", "--", "ls")

    assert files_of(said) == ["data/a"]
    assert json.loads(said.output)["left_out"] == [f"data/{name}" for name in sorted(links)]


def test_linked_folders_that_point_at_each_other_end(here, monkeypatch):
    folders = [here / "data" / name for name in "bcdefghijklm"]
    for folder in folders:
        folder.mkdir()
    for folder in folders:
        for other in folders:
            (folder / f"to-{other.name}").symlink_to(other)
    monkeypatch.setattr(included, "MOST_ENTRIES", 1000)

    submitted = packed(here, "--include", "data", "--", "ls")
    put = CliRunner().invoke(main, ["contents", "data"])

    assert (submitted.exit_code, put.exit_code) == (65, 65)
    assert "--include = 'data': more than 1,000" in submitted.output
    assert "PATH 'data': more than 1,000 files and folders, behind links in linked" in put.output


def test_links_travel_under_their_names_and_modules_that_lie_elsewhere_are_named(here):
    (here.parent / "shared.py").write_text("")
    (here / "shared.py").symlink_to("../shared.py")
    (here / "train.py").write_text("import shared")
    (here / "newest.py").symlink_to("data/late.py")
    (here / "data/late.py").write_text("print()")

    said = packed(here, "--", "python", "train.py")

    assert files_of(said) == ["shared.py", "train.py"]
    assert json.loads(said.output)["elsewhere"] == ["shared.py"]
    assert files_of(packed(here, "--", "python", "./newest.py")) == ["newest.py"]


MODULES = {
    "late.py": "import deep.inner",
    "deep/__init__.py": "",
    "deep/inner.py": "from . import near\nfrom .near import value\nfrom .. import beyond",
    "deep/near.py": "value = 1",
    "beside/tool.py": "import helper",
    "beside/helper.py": "",
    "unused.py": "",
    "gpu_fleet/__init__.py": "",
}


def test_modules_travel_that_a_program_imports_inside_a_function(here):
    (here / "train.py").write_text("import json, numpy, gpu_fleet\ndef run():\n    import late\n")
    for name, text in MODULES.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)

    files = files_of(packed(here, "--include", "deep/__init__.py", "--", "python", "train.py"))

    assert files == ["deep/__init__.py", "deep/inner.py", "deep/near.py", "late.py", "train.py"]
    assert files_of(packed(here, "--", "python", "beside/tool.py")) == ["beside/helper.py", "beside/tool.py"]


STARTS = {
    "a module": ("python", "-m", "pkg.fit"),
    "a module behind options": ("python3.11", "-X", "dev", "-um", "pkg.fit", "--lr", "1"),
    "a module on ranks": ("torchrun", "--nproc-per-node", "2", "-m", "pkg.fit"),
    "a module by torch": ("python", "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "pkg.fit"),
    "a program of a shell": ("bash", "-c", "set -e; LR=1 python pkg/fit.py --lr $LR"),
    "a module of a shell": ("env", "A=b", "bash", "-lc", "python -m pkg.fit"),
    "a program elsewhere": ("bash", "-c", "cd pkg && python fit.py"),
    "a program beside other words": ("bash", "-c", "python pkg/fit.py --to a+b:c,d@e --cut $X%"),
    "a program of an odd name": ("bash", "-c", "python pkg/also+fit.py"),
    "code": ("python", "-c", "from pkg import fit; fit.main()"),
    "a script": ("bash", "run.sh", "--fast"),
    "a script of a script": ("./outer.sh",),
}


def test_a_program_travels_with_what_it_imports_however_it_is_started(here):
    lay(here, "pkg/helper.py", "pkg/__init__.py", "conf.yaml")
    (here / "pkg/fit.py").write_text("import pkg.helper\n")
    (here / "pkg/also+fit.py").write_text("import pkg.fit\n")
    (here / "run.sh").write_text("cd pkg # it's here\nexec python -u fit.py conf.yaml\n")
    (here / "outer.sh").write_text("./run.sh\n")

    missing = {
        case: {"pkg/fit.py", "pkg/__init__.py", "pkg/helper.py"} - {*files_of(packed(here, "--", *words))}
        for case, words in STARTS.items()
    }

    assert {case: files for case, files in missing.items() if files} == {}


def test_a_file_that_a_flag_names_travels_and_need_not_where_it_is_of_the_checkpoints(here):
    lay(here, "conf/big.yaml", "conf.yaml")
    (here / "out").mkdir()
    words = ("--", "python", "train.py")

    for flag in ("--config=conf.yaml", "config=conf.yaml", "--config conf.yaml"):
        assert "conf.yaml" in files_of(packed(here, *words, *flag.split())), flag
    found_there = packed(here, "--include", "conf", *words, "--config", "big.yaml")
    assert "conf/big.yaml" in files_of(found_there)
    for flags in ("--config out/kept.json", "--out out --log=out"):
        assert files_of(packed(here, "--checkpoints", "out", *words, *flags.split())) == ["train.py"], flags


def test_what_may_be_on_an_instance_is_not_refused(here):
    for words in (
        ("json-tool", "--config=/home/ada/conf.yaml"),
        ("json-tool", "--config=s3://bucket/conf.yaml"),
        ("json-tool", "--config", "gpt2", "--save-config", "out.yaml", "--output=out.json"),
        ("bash", "-c", "make-it && json-tool --config=conf.yaml"),
        ("bash", "-c", "python -c 'x = '$X"),
        ("python", "/home/ada/fit.py"),
        ("python", "-m", "json.tool"),
        ("python", "-m", "pytest"),
        ("bash", "-c", "aws s3 cp s3://b/fit.py . && python fit.py"),
        ("bash", "-c", "cd $HOME && python fit.py"),
        ("bash", "-c", "x" * 5000),
        ("grep", "-r", "python", "src"),
        ("python", "-"),
    ):
        assert files_of(packed(here, "--", *words)) == [], words


@given(st.lists(st.text("-=mcx./ &'$ptyhonbash", max_size=12), min_size=1, max_size=6))
def test_whatever_the_words_are_no_command_ends_in_a_traceback(words):
    try:
        command_line.read(words)
    except ConfigError:
        return


def test_a_program_that_cannot_be_read_or_imports_itself_travels_alone(here):
    for text in ("def run(:", "\0", "from ..... import x", "import train", "from . import *"):
        (here / "train.py").write_text(text)

        assert files_of(packed(here, "--", "python", "train.py")) == ["train.py"], text


def test_what_is_included_has_its_place_below_here_however_it_is_written(here):
    (here.parent / "link").symlink_to(here)

    for written in ("../mine/data", "data/../data", "../link/data", f"{here}/data"):
        assert files_of(packed(here, "--include", written, "--", "ls")) == ["data/a"], written


REFUSED = {
    "a file by a way around": (("--", "cat", "../mine/train.py"), "must be below"),
    "a folder that stays here": (("--", "python", "train.py", "data"), "'data' of COMMAND: instances do not"),
    "a file above": (("--", "cat", "../secret.txt"), "'../secret.txt' of COMMAND: must be below"),
    "checkpoints above": (("--checkpoints", "../x", "--", "ls"), "--checkpoints = '../x': must be below"),
    "flags of a configuration": (("--branch", "b", "--", "ls"), "--allow and --branch are for CONFIG"),
    "no such configuration": (("digits.toml",), "CONFIG 'digits.toml': there is no such file"),
    "a command's flag": (("--checkpoints", "x", "digits.toml"), "is for COMMAND; CONFIG has run.directory"),
    "a configuration of a terabyte": (("large.toml",), "'large.toml': is 1,099,511,627,776 bytes: at most"),
} | {
    case: (("--", *words), message)
    for case, (words, message) in {
        "an option first": (("-m", "train"), "'-m' of COMMAND: is an option; write a program before it"),
        "a missing file": (("python", "trian.py"), "'trian.py' of COMMAND: there is no such file below"),
        "a missing file of ranks": (("torchrun", "a/x.py"), "'a/x.py' of COMMAND: there is no such file"),
        "a missing script": (("bash", "-e", "run.sh"), "'run.sh' of COMMAND: there is no such file"),
        "a missing script of uv": (("uv", "run", "trian.py"), "'trian.py' of COMMAND: there is no such file"),
        "a missing program": (("./bin/run", "x"), "bin/run' of COMMAND: there is no such file"),
        "a missing file of a shell": (("bash", "-c", "cd data && python x.py"), "'x.py' of COMMAND: there"),
        "a missing module": (("python", "-m", "trian"), "-m trian of COMMAND: there is neither trian.py nor"),
        "a package": (("python", "-m", "pkg"), "COMMAND: there is neither pkg.py nor pkg/__main__.py"),
        "quotes around all": (("python train.py",), "'python train.py' of COMMAND: is one word"),
        "a variable": (("LR=1", "python", "train.py"), "'LR=1' of COMMAND: is no program; write env LR=1"),
        "nothing": (("", "train.py"), "COMMAND: its first word is empty"),
        "open quotes": (("bash", "-c", "python 'x"), "COMMAND: no shell can read it: No closing quotation"),
        "a folder": (("python", "train.py", "--data=data"), "'data' of COMMAND: instances do not have"),
        "a configuration": (
            ("python", "train.py", "--config=a/conf.yaml"),
            "'a/conf.yaml' of COMMAND: there",
        ),
        "a configuration of ranks": (
            ("accelerate", "launch", "--config_file", "two.yml", "train.py"),
            "'two.yml' of COMMAND: there is no such file below",
        ),
        "code with an error": (("python", "-c", "import a b"), "-c 'import a b' of COMMAND: no Python can"),
        "a file of a terabyte": (("cat", "large.bin"), "large.bin': is 1,099,511,627,776 bytes: at most"),
        "a module of a terabyte": (
            ("python", "-c", "import large"),
            "large.py': a module of 1,099,511,627,776",
        ),
    }.items()
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_instance_could_not_read_or_start_is_said_before_it_is_sent(case, here):
    lay(here, "pkg/__init__.py", "large.bin", "large.py", "large.toml")
    for name in ("large.bin", "large.py", "large.toml"):
        os.truncate(here / name, 1 << 40)  # of zeros that take no place on the disk
    words, message = REFUSED[case]

    said = packed(here, *words)

    assert said.exit_code == 65, said.output
    assert message in said.output
    assert not (here.parent / "out.zip").exists()
