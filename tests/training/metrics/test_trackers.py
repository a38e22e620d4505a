"""Weights & Biases and MLflow take the records of a run; the real packages are in a separate environment."""

import json
import os
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError
from gpu_fleet.metrics.trackers import Aside, curves, wandb_id
from gpu_fleet.metrics.writers import open_writers
from tests.ran import ran

ROOT = Path(__file__).parents[3]
PINS = ("wandb==0.31.0", "mlflow-skinny==3.17.2", "sqlalchemy==2.1.9", "alembic==1.20.1")
WANTED = "GPU_FLEET_TEST_TRACKERS"
# Two tries of one run; what MLflow and W&B then have of it.
PROGRAM = """
import json, sys
from pathlib import Path
from gpu_fleet.core import config
from gpu_fleet.metrics.writers import open_writers

directory = Path(sys.argv[1])
settings = config.Metrics(progress=False, wandb="digits", mlflow=f"sqlite:///{directory}/mlflow.db")
for steps in (range(1, 3), range(3, 5)):
    writer = open_writers(settings, directory, 4, {"run": {"seed": 7}})
    for step in steps:
        writer.write({"kind": "train", "step": step, "loss": 1 / step})
    writer.close()

import mlflow
client = mlflow.MlflowClient(tracking_uri=settings.mlflow)
runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
history = client.get_metric_history(runs[0].info.run_id, "train/loss")
print(json.dumps({
    "runs": len(runs), "params": runs[0].data.params, "status": runs[0].info.status,
    "losses": sorted((m.step, m.value) for m in history),
    "offline": len(list(directory.glob("wandb/offline-run-*/*.wandb"))),
}))
"""


def test_a_record_becomes_curves_by_kind():
    record = {"kind": "train", "step": 3, "loss": 0.5, "metric_name": "accuracy"}

    assert curves(record) == {"train/loss": 0.5}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_one_message(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ConfigError, match=rf"metrics.{name}: needs .* pip install {name}"):
        open_writers(config.Metrics(**{name: "x"}), tmp_path, steps=4)


def test_no_two_runs_of_a_project_have_one_id_at_wandb():
    low, high = (wandb_id(Path(f"sweep/{rate}:1/run"), "alice") for rate in ("low", "high"))
    hers, his = (wandb_id(Path("runs/a"), owner) for owner in ("alice", "bob"))

    assert len({low, high, hers, his}) == 4
    assert hers == wandb_id(Path("./runs/a"), "alice")
    assert low.startswith("alice-sweep-low-1-run-")


def test_a_tracker_that_fails_ends_no_run_and_is_named_once(caplog):
    gone = ConnectionError("gone")
    server = Mock(write=Mock(side_effect=[None, gone, gone, None]))
    aside = Aside(server, "mlflow")

    for step in range(1, 5):
        aside.write({"kind": "train", "step": step})
    aside.close()

    assert [call.args[0]["step"] for call in server.write.call_args_list] == [1, 2, 3, 4]
    assert server.close.called
    assert caplog.text.count("event=tracker-failed name=mlflow error='gone'") == 1
    assert "event=tracker-incomplete name=mlflow failed=2 left=0" in caplog.text


def test_a_tracker_that_hangs_holds_up_neither_a_step_nor_the_end(caplog):
    answers = threading.Event()
    aside = Aside(Mock(write=lambda _: answers.wait()), "mlflow", close_s=0.0)

    aside.write({"kind": "train", "step": 1})
    aside.close()
    answers.set()

    assert "event=tracker-incomplete name=mlflow failed=0" in caplog.text


@pytest.fixture(scope="module")
def python() -> Path:
    """Return an interpreter with both packages, and torch of this environment; it is kept in build/."""
    folder = ROOT / "build" / "trackers"
    if not (folder / ".ready").exists():
        if not os.environ.get(WANTED):
            pytest.skip(f"set {WANTED}=1 to install {', '.join(PINS)} into build/trackers once")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        Path(packages, "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", *PINS], check=True)
        (folder / ".ready").touch()
    return folder / "bin" / "python"


def test_both_real_trackers_go_on_in_a_resumed_run(python, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "training")}
    done = ran([python, "-c", PROGRAM, str(tmp_path)], env=environment)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "runs": 1,
        "params": {"run.seed": "7"},
        "status": "FINISHED",
        "losses": [[1, 1.0], [2, 0.5], [3, 1 / 3], [4, 0.25]],
        "offline": 2,
    }
