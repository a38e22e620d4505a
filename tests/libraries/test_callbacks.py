"""The callbacks with the real libraries: stopped by a notice and resumed is as if undisturbed."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIBRARIES = ("hugging_face", "accelerate", "lightning")

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]


def run(
    python: Path, kind: str, folder: Path, workers: int, stop_at: int = 0, *, ranks: int = 1
) -> tuple[int, str]:
    """One training as its library's users start it: its exit status, and all it said.

    The environment is this process's.
    """
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    )
    done = subprocess.run(
        [python, *torchrun, HERE / "loops.py", kind, folder, str(workers), str(stop_at)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def is_as_if_undisturbed(python, tmp_path) -> Callable[..., None]:
    """Hold a training that is stopped by a notice and resumed to one without."""

    def hold(
        kind: str, stop_at: int, workers: int = 0, files: tuple[str, ...] = ("weights.txt",), ranks: int = 1
    ) -> None:
        straight, broken = tmp_path / "straight", tmp_path / "broken"

        undisturbed = run(python, kind, straight, workers, ranks=ranks)
        stopped = run(python, kind, broken, workers, stop_at, ranks=ranks)
        written = (broken / "weights.txt").exists()
        resumed = run(python, kind, broken, workers, ranks=ranks)

        ended = 85 if ranks == 1 else 0  # torchrun would start it again at once
        said = stopped[1] + resumed[1]
        assert [status for status, _ in (undisturbed, stopped, resumed)] == [0, ended, 0], said
        assert not written
        assert [file for file in files if (broken / file).read_text() != (straight / file).read_text()] == []
        assert "not exact" not in undisturbed[1] + resumed[1]

    return hold


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_training_whose_weights_diverge_is_no_success(kind, python, tmp_path, monkeypatch):
    monkeypatch.setenv("RATE", "inf")

    status, said = run(python, kind, tmp_path, 0)

    assert status == 65, said
    assert "error: the weights of rank 0 are no finite numbers after step 11, which is not saved" in said
    assert not (tmp_path / "weights.txt").exists()


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_a_loop_that_makes_no_update_is_no_success(library, python, tmp_path, monkeypatch):
    """Hugging Face's Trainer makes the updates itself."""
    monkeypatch.setenv("IDLE", "1")

    status, said = run(python, library, tmp_path, 0)

    assert status == 65, said
    assert (
        "error: the steps compute gradients, and none has changed a parameter: call optimizer.step()" in said
    )
    assert not (tmp_path / "weights.txt").exists()


UPDATES = {
    "idle": "65",
    "idle to the end": "65,65",
    "idle and resumed": "85,65,65",
    "rate of 0 and finished": "0,0",
    "early and resumed": "85,0",
    "resumed": "85,0",
}  # how the tries of a loop end; the others end with 0


@pytest.mark.prove
@pytest.mark.parametrize(("library", "at_once"), [("accelerate", "85,85"), ("lightning", "85,0")])
def test_a_loop_that_only_seems_to_make_no_update_is_not_refused(library, at_once, python, tmp_path):
    """Lightning goes on at a notice that comes before the first update."""
    program = [python, HERE / "updates.py", library, tmp_path]
    done = subprocess.run(program, capture_output=True, text=True, check=False)

    ended = dict(re.findall("^ended,([^,]+),(.+)$", done.stdout, re.MULTILINE))
    assert done.returncode == 0, done.stderr
    assert len(ended) == 19
    expected = {**UPDATES, "early and stopped at once": at_once}
    assert ended == {name: expected.get(name, "0") for name in ended}


@pytest.mark.parametrize("stop_at", [4, pytest.param(6, marks=pytest.mark.prove)])
def test_a_notice_is_heeded_although_lightning_counts_no_update(stop_at, is_as_if_undisturbed, monkeypatch):
    monkeypatch.setenv("UNCOUNTED", "1")

    is_as_if_undisturbed("lightning", stop_at)


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.prove), 2])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_notice_in_the_midst_of_an_epoch_changes_no_bit(library, workers, is_as_if_undisturbed):
    is_as_if_undisturbed(library, 8, workers)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.prove)])
@pytest.mark.parametrize("kind", ["noisy_hugging_face", "noisy_accelerate", "noisy_lightning"])
def test_what_samples_draw_is_the_same_after_a_notice(kind, workers, is_as_if_undisturbed):
    is_as_if_undisturbed(kind, 8, workers)


@pytest.mark.prove
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_notice_between_the_micro_batches_of_an_update_changes_no_bit(
    library, is_as_if_undisturbed, monkeypatch
):
    """Their gradients are in no checkpoint: the update is waited for."""
    monkeypatch.setenv("ACCUMULATED", "2")

    is_as_if_undisturbed(library, 7)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("ranks", "stop_at"), [(1, 6), (2, 9)], ids=["before a validation", "in the second epoch"]
)
def test_a_rate_that_follows_the_validation_of_lightning_is_as_if_undisturbed(
    ranks, stop_at, is_as_if_undisturbed
):
    """Ranks validate uneven numbers of batches, and draw the order of each epoch themselves."""
    is_as_if_undisturbed("validated_lightning", stop_at, ranks=ranks)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("every", "stop_at"), [(11, 13), (4, 6), (4, 15)], ids=["the last", "the first", "the second"]
)
def test_a_notice_in_an_evaluation_of_the_trainer_ends_it_and_loses_nothing(
    every, stop_at, is_as_if_undisturbed, monkeypatch
):
    """The resumed run begins with it: steps, scores, the best checkpoint and its weights are the same."""
    monkeypatch.setenv("EVALUATE_EVERY", str(every))

    is_as_if_undisturbed("evaluated_hugging_face", stop_at, files=("scores.txt", "weights.txt"))


@pytest.mark.prove
@pytest.mark.parametrize(
    ("library", "key"),
    list(zip(LIBRARIES, ("arguments.learning_rate", "run.rate", "run.rate"), strict=True)),
)
def test_another_learning_rate_in_the_same_folder_is_refused(library, key, python, tmp_path, monkeypatch):
    stopped = run(python, library, tmp_path, workers=0, stop_at=8)
    monkeypatch.setenv("RATE", "0.1")

    status, said = run(python, library, tmp_path, workers=0)

    assert (stopped[0], status) == (85, 65), stopped[1] + said
    assert f"  {key}  0.05 -> 0.1" in said
    assert "Traceback" not in said


@pytest.mark.prove
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_attribute_that_no_checkpoint_holds_is_named(library, python, tmp_path, monkeypatch):
    monkeypatch.setenv("FORGETFUL", "1")

    status, said = run(python, library, tmp_path, workers=0)

    assert status == 0, said
    assert "mean, which is in no checkpoint; make it a persistent buffer" in said


@pytest.mark.prove
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_layer_that_the_model_does_not_know_is_refused(library, python, tmp_path, monkeypatch):
    monkeypatch.setenv("HIDDEN", "1")

    status, said = run(python, library, tmp_path, workers=0)

    assert (status, "Traceback" in said) == (65, False), said
    assert "others holds parameters that get gradients, and the model does not know them" in said


@pytest.mark.prove
def test_a_loader_that_cannot_go_on_is_reported_at_the_start(python, tmp_path):
    status, said = run(python, "plain_lightning", tmp_path, workers=0)

    assert status == 0
    assert "gpu-fleet: not exact in the middle of an epoch: DataLoader has no state_dict" in said


@pytest.mark.prove
def test_a_folder_of_hugging_faces_datasets_is_trained_from(python, tmp_path):
    """Four steps and then four more are eight; a column that is not there is named."""
    data = str(tmp_path / "data")
    make = (
        "from loops import points; from datasets import Dataset, DatasetDict; import sys; x, y = points()\n"
    )
    make += "train = Dataset.from_dict({'x': x.tolist(), 'labels': y.tolist(), 'text': ['a'] * len(y)})\n"
    make += "DatasetDict(train=train, validation=train).save_to_disk(sys.argv[1])\n"
    subprocess.run([python, "-c", make, data], cwd=HERE, check=True, capture_output=True)
    table = f"""
    [run]
    batch_size = 8
    steps = 8
    [model]
    name = "loops.py:Net"
    [data]
    path = "{data}"
    columns = ["x", "labels"]
    [schedule]
    name = "constant"
    """
    (tmp_path / "job.toml").write_text(table)

    def train(directory: str, *overrides: str) -> subprocess.CompletedProcess[str]:
        words = [python, "-m", "gpu_fleet", "start", tmp_path / "job.toml"]
        words += ["--run.directory", tmp_path / directory]
        return subprocess.run([*words, *overrides], cwd=HERE, capture_output=True, text=True, check=False)

    whole = train("whole")
    parts = [train("parts", "--run.steps", "4"), train("parts")]
    wrong = train("wrong", "--data.columns", '["x", "label"]')

    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert [done.returncode for done in (whole, *parts)] == [0, 0, 0], whole.stderr
    assert weights[0] == weights[1]
    assert "data.columns: 'label' is no column of" in wrong.stderr
    assert "it has x, labels, text" in wrong.stderr
    assert "Traceback" not in wrong.stderr
