"""`queued`: the end of a queue's job, its reports, and the instance that it blames."""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import boto3
import pytest
from botocore.utils import ContainerMetadataFetcher

from gpu_fleet.core import exit_codes
from gpu_fleet_jobs.submitted import queued
from gpu_fleet_jobs.submitted.queued import QueuedJob, directory_of
from gpu_fleet_jobs.submitted.reporter import Reporter, places, sent_bytes
from tests.image.metadata_server import metadata_server
from tests.ran import executable
from tests.training.submitted.test_submitted import Bucket, log_of

# What another user writes where the job's own comment is looked for.
FORGED = " Comment=gpu-fleet:failed-on=i-7,i-8,i-9"
OTHERS = {"job_id": 71, "name": f"JobId=7{FORGED}", "comment": FORGED}
# Scheme of its URIs, what leads users to their credentials, and what a job says while nothing answers there.
ENDPOINTS = {
    "aws": (
        "s3",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        'Could not connect to the endpoint URL: "http://127.0.0.1:{port}/credentials"',
    ),
    "alicloud": (
        "oss",
        "ALIBABA_CLOUD_CREDENTIALS_URI",
        "ALIBABA_CLOUD_CREDENTIALS_URI http://127.0.0.1:{port}/credentials: no answer",
    ),
}
BAD = "srun: error: {node}: task 1: Exited with exit code {code}"


@pytest.fixture(autouse=True)
def usr1():
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


class Slurm:
    """Fake of the commands of Slurm that a job calls."""

    def __init__(self, comment: str = "gpu-fleet", answer: str = "") -> None:
        self.calls: list[str] = []
        self.comment, self.answer = comment, answer

    def __call__(self, *words: str) -> str:
        text = " ".join(words)
        if text == "squeue --json":
            return self.answer or json.dumps({"jobs": [OTHERS, {"job_id": 7, "comment": self.comment}]})
        self.calls.append(text)
        return ""


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """Return a function that puts a shell script in the place of srun."""

    def put(text: str) -> None:
        file = tmp_path / "srun"
        executable(file, f"#!/bin/sh\n{text}\n")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return put


def job(
    slurm: Slurm, bucket: Bucket, tmp_path: Path, jobs: Bucket | None = None, **more: object
) -> QueuedJob:
    words = ("run", "--checkpoints", str(tmp_path), "--", "true")
    reporter = Reporter(bucket)
    return QueuedJob(
        words, tmp_path / "log", jobs or Bucket(), reporter, {"SLURM_JOB_ID": "7"}, ask=slurm, **more
    )


@pytest.mark.parametrize(
    ("code", "ends", "phase"),
    [
        (exit_codes.FINISHED, 0, "finished"),
        (exit_codes.STOPPED, 85, "retrying"),
        (exit_codes.USAGE, 2, "failed"),
        (exit_codes.FAILED_FOR_GOOD, 65, "failed"),
        (exit_codes.FAILED_PERHAPS, 85, "retrying"),
        (137, 85, "retrying"),
    ],
)
def test_exit_codes_decide_whether_the_queue_runs_a_job_again(srun, tmp_path, code, ends, phase):
    srun(f"exit {code}")
    bucket = Bucket()

    assert job(Slurm(), bucket, tmp_path).run() == ends

    assert bucket.state["phase"] == phase


@pytest.mark.parametrize(
    ("before", "ends", "comment"),
    [
        ("gpu-fleet", 85, "gpu-fleet:failed-on=i-2"),
        ("gpu-fleet:failed-on=i-1", 85, "gpu-fleet:failed-on=i-1,i-2"),
        (f"mine{FORGED}", 85, "gpu-fleet:failed-on=i-2"),
        ("gpu-fleet:failed-on=i-1,-", exit_codes.FAILED_PERHAPS, None),
        ("gpu-fleet:failed-on=i-1,i-2", exit_codes.STOPPED, None),  # stops of the cloud use up no tries
    ],
)
def test_what_may_pass_is_tried_three_times_and_each_try_names_its_instance(
    srun, tmp_path, before, ends, comment
):
    code = exit_codes.STOPPED if ends == exit_codes.STOPPED and not comment else exit_codes.FAILED_PERHAPS
    srun(f"echo '{BAD.format(node='i-2', code=75)}' >&2; exit {code}")
    slurm = Slurm(before)

    assert job(slurm, Bucket(), tmp_path).run() == ends

    assert slurm.calls == ([f"scontrol update jobid=7 comment={comment}"] if comment else [])


@pytest.mark.parametrize(
    "answer", ["slurm_load_jobs error", "[]", '{"jobs": []}', '{"jobs": [{"job_id": 7}]}']
)
def test_where_slurm_answers_something_else_a_try_counts_as_the_first(srun, tmp_path, answer):
    srun(f"exit {exit_codes.FAILED_PERHAPS}")
    slurm = Slurm(answer=answer)

    assert job(slurm, Bucket(), tmp_path).run() == exit_codes.STOPPED

    assert slurm.calls == ["scontrol update jobid=7 comment=gpu-fleet:failed-on=-"]


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_a_job_whose_credentials_endpoint_is_down_runs_and_says_so(
    srun, tmp_path, monkeypatch, caplog, cloud
):
    srun("exit 0")
    scheme, variable, why = ENDPOINTS[cloud]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # which has the keys of earlier tests
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with metadata_server("alicloud") as server:
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", server.base)
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}/credentials")
        file = tmp_path / "instance.toml"
        file.write_text(f'cloud = "{cloud}"\nregion = "cn-shanghai"\n')
        monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(file))
        table = {"records_uri": f"{scheme}://records/reaper", "pool": "train"}
        jobs, said = places(table, "ada", "digits-7", "queue")

        status = QueuedJob(
            ("run", "--", "true"), tmp_path / "log", jobs, Reporter(said), {"SLURM_JOB_ID": "7"}, ask=Slurm()
        ).run()

    assert status == exit_codes.FINISHED
    assert why.format(port=port) in caplog.text


def test_bytes_that_are_no_text_end_no_run():
    assert queued.slurm("printf", r"\377") == "\ufffd"


@pytest.mark.parametrize(
    ("lines", "blamed"),
    [
        ([BAD.format(node="i-2", code=75), BAD.format(node="i-3", code=143)], "i-2"),
        (["srun: error: i-[1-2]: tasks 0-1: Exited with exit code 75"], "-"),
        (["the program's own word", "srun: error: i-3: task 1: Segmentation fault"], "i-3"),
        (["nothing of srun's"], "-"),
    ],
)
def test_the_first_instance_that_failed_is_blamed_and_of_several_none(
    srun, tmp_path, capfdbinary, lines, blamed
):
    said = "\n".join(lines)
    srun(f'echo "{said}" >&2; exit 75')
    slurm = Slurm()

    job(slurm, Bucket(), tmp_path).run()

    assert slurm.calls == [f"scontrol update jobid=7 comment=gpu-fleet:failed-on={blamed}"]


def test_a_run_that_a_laptop_cancelled_while_it_waited_starts_no_more(srun, tmp_path):
    srun(f"touch {tmp_path}/started")
    slurm, bucket = Slurm(), Bucket()

    job(slurm, bucket, tmp_path, jobs=Bucket(cancel=b"{}")).run()

    assert slurm.calls == ["scancel 7"]
    assert bucket.state["phase"] == "cancelled"
    assert not (tmp_path / "started").exists()


def test_a_cancelled_run_saves_before_slurm_ends_the_job(srun, tmp_path, monkeypatch):
    """Only the steps get the first signal; the job is cancelled once they have ended."""
    monkeypatch.setattr(queued, "LOOK_EVERY_S", 0.01)
    began, pipe = tmp_path / "began", tmp_path / "asked"
    for each in (began, pipe):
        os.mkfifo(each)
    srun(f"echo begins >{began}; read -r word <{pipe}; exit {exit_codes.STOPPED}")

    class Steps(Slurm):
        def __call__(self, *words: str) -> str:
            if "--signal=TERM" in words:
                pipe.write_text("save\n")
            return super().__call__(*words)

    slurm, bucket = Steps(), Bucket()

    def cancels() -> None:
        began.read_text()
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=cancels, daemon=True).start()
    job(slurm, bucket, tmp_path).run()

    assert slurm.calls == ["scancel --signal=TERM 7", "scancel 7"]
    assert bucket.state["phase"] == "cancelled"


def test_the_log_continues_where_the_try_before_stopped_or_is_sent_whole_where_nothing_is_listed(tmp_path):
    bucket = Bucket()
    file = tmp_path / "log"
    file.write_text("one\n")
    Reporter(bucket).send(file)
    file.write_text("one\ntwo\n")

    Reporter(bucket, sent_bytes=sent_bytes(bucket)).send(file)

    assert log_of(bucket) == [b"one\n", b"two\n"]
    bucket.silent = True
    assert sent_bytes(bucket) == 0


def test_the_directory_of_a_run_is_that_of_its_configuration_with_its_overrides(tmp_path):
    example = Path(__file__).parents[3] / "training/examples/digits.toml"

    assert directory_of(("launch", str(example))) == "runs/digits"
    laid = ("launch", str(example), "--nproc-per-node", "1", "--run.directory", "runs/x")
    assert directory_of(laid) == "runs/x"
    assert directory_of(("run", "--checkpoints", "out", "--", sys.executable, "--version")) == "out"
    assert directory_of(("launch", str(tmp_path / "none.toml"))) == ""
