"""A user's own model, data, loss, metric and optimizer by name: exact, and part of the run's identity."""

import ast
import json
import os
import sys
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.torch import load_file

from gpu_fleet import cli
from gpu_fleet.core import reachable, user_code
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.data.own_data import ENDLESS, OwnReader, Stream
from tests.training.commands import tried_alone
from tests.training.data.test_shards import write_tar
from tests.training.examples import changed, interrupted, train_on, train_rank
from tests.training.programs import ROOT
from tests.training.ranks import run_ranks

EXAMPLES = ROOT / "training/examples"
OWN = ("own_model", "own_records", "own_regression", "own_stream")
LONGEST = 40  # lines of an example


def example(name: str, directory: Path, digits: Path, steps: int = 6) -> dict[str, Any]:
    """Return an example's configuration for so many steps of a test."""
    table = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())
    table["run"] = {**table["run"], "directory": str(directory), "epochs": 0.0, "steps": steps}
    if name == "own_records":
        table["data"]["path"] = str(priced_pictures(digits, directory.parent / "houses"))
    elif "path" in table["data"]:
        table["data"]["path"] = str(digits)
    exact = {"interrupt": {"agree_every_s": 0.0}, "checkpoint": {"every_steps": 0, "every_s": 0.0}}
    return changed(table, metrics={"progress": False}, **exact)


def priced_pictures(digits: Path, folder: Path) -> Path:
    """Write tars of pictures, each with a price in a JSON text, and their index."""
    if folder.exists():
        return folder
    for split in ("train", "val"):
        members = {}
        for number, file in enumerate(sorted(digits.glob(f"{split}/*/*.png"))[:80]):
            Image.open(file).save(jpeg := BytesIO(), "JPEG")
            members[f"{number}.jpg"] = jpeg.getvalue()
            members[f"{number}.json"] = json.dumps({"price": int(file.parent.name)}).encode()
        write_tar(folder / split / "0.tar", members)
    done = CliRunner().invoke(cli.main, ["prepare", "index", str(folder), "--keys", "jpg,json"])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_short(file):
    assert len(file.read_text().splitlines()) <= LONGEST


@pytest.fixture(scope="module")
def straight(digits, tmp_path_factory) -> Callable[[str], dict[str, Any]]:
    """Return a function from an example to its outcome on two undisturbed ranks; each is trained once."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return cache(lambda name: train_on(2, example(name, folder / name, digits)))


OFTEN = (("own_records", 1), ("own_regression", 0), ("own_stream", 1))


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=() if (name, workers) in OFTEN else pytest.mark.prove)
        for name in OWN
        for workers in (0, 1)
    ],
)
def test_an_example_that_is_interrupted_on_two_ranks_ends_with_the_same_bits(
    name, workers, straight, digits, tmp_path
):
    broken = changed(example(name, tmp_path / "broken", digits), data={"workers": workers})

    interrupted(2, {"broken": broken}.get, stop_at=3, straight=straight(name))


def test_own_metrics_are_written_the_first_is_the_score_and_the_model_has_the_users_names(digits, tmp_path):
    result = train_on(1, example("own_regression", tmp_path, digits))

    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert result["metric_name"] == "mean absolute error"
    evaluated = [record for record in records if record["kind"] == "evaluation"]
    assert evaluated[-1]["mean absolute error"] == result["metric"] > 0
    names = {f"{layer}.{part}" for layer in (0, 3) for part in ("weight", "bias")}
    assert {*load_file(tmp_path / "model/model.safetensors")} == names


def test_held_out_samples_count_once_on_any_number_of_ranks(digits, tmp_path):
    """500 samples in batches of 32 leave a batch of 20, and ranks without samples."""
    scores = []
    for ranks in (1, 2):
        table = example("own_regression", tmp_path / str(ranks), digits, steps=1)
        table["data"]["options"] = {"size": 500}
        table["optimizer"]["learning_rate"] = 1e-12
        scores.append(train_on(ranks, table)["metric"])

    assert scores[0] == pytest.approx(scores[1], rel=1e-6)


def test_what_is_installed_is_not_the_users(tmp_path, monkeypatch):
    """uv links the files of a package from a store; an environment may have the packages of the system."""
    packages, store = tmp_path / "installed/package", tmp_path / "store"
    packages.mkdir(parents=True)
    store.mkdir()
    (store / "module.py").touch()
    (packages / "module.py").symlink_to(store / "module.py")
    monkeypatch.setattr(user_code, "NOT_OF_USERS", {packages.parent.resolve()})

    python = tmp_path / "usr/lib/python3"
    for installed in (packages, python / "dist-packages/yaml", python / "site-packages/yaml"):
        assert not user_code.is_of_user(str(installed / "module.py"))
    for own in (store, python / "yaml"):
        assert user_code.is_of_user(str(own / "module.py"))


def test_a_model_of_ones_own_is_averaged_and_sharded_by_its_lists_of_layers(digits, tmp_path):
    average = {"name": "ema", "decay": 0.5, "batch_norm_batches": 1}
    averaged = train_on(1, changed(example("own_regression", tmp_path / "a", digits), average=average))
    sharded = changed(example("own_regression", tmp_path / "b", digits), parallel={"strategy": "fsdp"})

    assert averaged["metric"] > 0
    assert train_on(2, sharded)["outcome"] == "finished"


def with_late_module(table: dict[str, Any], folder: Path) -> tuple[dict[str, Any], Path]:
    """Copy the example's code to a folder, from which it is to be started; its loss imports a module late.

    Return the configuration, and the file of the module that is imported only when the loss is called.
    """
    folder.mkdir(exist_ok=True)
    name = table["loss"]["name"].partition(":")[2]
    code = (EXAMPLES / "own_regression.py").read_text() + LATE.replace("* loss(", f"* {name}(")
    (folder / "my_code.py").write_text(code)
    table = json.loads(json.dumps(table).replace("training/examples/own_regression.py", "my_code.py"))
    table["loss"]["name"] = "my_code.py:late"
    (folder / "helpers").mkdir()
    module = folder / "helpers/scales.py"
    module.write_text("SCALE = 1.0\n")
    return table, module


def started_in(folder: Path, table: dict[str, Any], stop_at: int = 0) -> dict[str, Any]:
    """Train on one rank that is started in `folder`."""
    return run_ranks(train_in, 1, folder, table, stop_at)[0]


def train_in(folder: Path, table: dict[str, Any], stop_at: int) -> dict[str, Any]:
    os.chdir(folder)
    return train_rank(table, stop_at)


def tried_in(folder: Path, table: dict[str, Any]) -> tuple[int, str]:
    os.chdir(folder)
    return tried_alone(table, folder)


LATE = """

def late(*arguments, **options):
    from helpers.scales import SCALE

    return SCALE * loss(*arguments, **options)
"""


def test_changed_code_is_another_run_until_it_is_allowed(digits, tmp_path):
    """This includes a module that a function imports only when it is called."""
    table, module = with_late_module(example("own_regression", tmp_path / "run", digits), tmp_path)
    started_in(tmp_path, table, stop_at=2)
    module.write_text("SCALE = 2.0\n")

    _, of_module = run_ranks(tried_in, 1, tmp_path, table)[0]
    file = tmp_path / "my_code.py"
    file.write_text(file.read_text().replace(".mean()", ".sum()"))
    refused, of_both = run_ranks(tried_in, 1, tmp_path, table)[0]
    allow = {"allow": ["code.my_code.py", "code.helpers/scales.py"]}
    allowed = started_in(tmp_path, changed(table, checkpoint=allow))

    assert refused == 65
    assert ("code.helpers/scales.py" in of_module, "code.my_code.py" in of_module) == (True, False)
    assert ("code.helpers/scales.py" in of_both, "code.my_code.py" in of_both) == (True, True)
    assert allowed["resumed_from_step"] == 2


def written(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files, by their paths."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def files_of(folder: Path, program: str, extra_path: str = "") -> list[str]:
    """Return the files of a run whose configuration names `program`, started in `folder`."""
    os.chdir(folder)
    if extra_path:
        sys.path.append(extra_path)
    user_code.load("loss.name", f"{program}:loss", directory="run")
    return [name for name in user_code.files(Path("run")) if not name.startswith("tests/")]


def loss_with(*imports: str) -> str:
    body = "\n".join(f"    {line}" for line in imports)
    return f"def loss(model, batch):\n{body}\n"


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        (["import helpers.scales"], ["helpers/scales.py"]),
        (["from helpers import scales, nothing"], ["helpers/scales.py"]),
        (["from helpers.deep.inner import X"], ["helpers/deep/inner.py", "helpers/scales.py"]),
        (["import package.part"], ["package/__init__.py", "package/part.py", "package/other.py"]),
        (["try:", "    import helpers.scales", "except ImportError:", "    pass"], ["helpers/scales.py"]),
        (["class Inner:", "    import helpers.scales"], ["helpers/scales.py"]),
        (["import circle_a"], ["circle_a.py", "circle_b.py"]),
    ],
)
def test_what_a_function_imports_belongs_to_the_run(imports, expected, tmp_path):
    texts = {
        "mine.py": loss_with(*imports),
        "helpers/scales.py": "SCALE = 1",
        "helpers/deep/inner.py": "from helpers import scales",
        "package/__init__.py": "",
        "package/part.py": "from . import other\nfrom .. import helpers",
        "package/other.py": "",
        "circle_a.py": "import circle_b",
        "circle_b.py": "def f():\n    import circle_a",
    }
    written(tmp_path, texts)

    assert run_ranks(files_of, 1, tmp_path, "mine.py")[0] == sorted([*expected, "mine.py"])


@pytest.mark.parametrize(
    "imports",
    [
        ["import numpy, json, torch.nn, gpu_fleet.integrations.run"],
        ["from typing import TYPE_CHECKING", "if TYPE_CHECKING:", "    import helpers.scales"],
        ["import typing", "if not typing.TYPE_CHECKING:", "    pass", "else:", "    import helpers.scales"],
        ["import random"],  # which is loaded, and hides the file beside
        ["from folder.only import nothing"],
        ["from ... import helpers"],
        ["import folder.missing, nothing"],
    ],
)
def test_what_a_function_cannot_import_is_no_part_of_the_run(imports, tmp_path):
    unused = ("helpers/scales.py", "random.py", "folder/another.py", "tests/test_mine.py", "script.py")
    written(tmp_path, {"mine.py": loss_with(*imports), **dict.fromkeys(unused, "import mine")})

    found = run_ranks(files_of, 1, tmp_path, "mine.py")[0]

    assert found == ["mine.py"]


def test_what_a_loaded_module_did_not_import_at_its_top_is_no_part_of_the_run(tmp_path):
    top = "try:\n    import missing_one, helpers.scales\nexcept ImportError:\n    pass\n"
    as_program = "if __name__ == '__main__':\n    import script\n"
    written(tmp_path, {"mine.py": top + loss_with("import later"), "later.py": as_program})
    written(tmp_path, {"helpers/scales.py": "", "script.py": ""})

    assert run_ranks(files_of, 1, tmp_path, "mine.py")[0] == ["later.py", "mine.py"]


def test_a_module_beside_an_unused_one_of_the_same_name_is_the_one_that_is_imported(tmp_path):
    """Only the folders of sys.path are searched, in their order, as Python does."""
    written(tmp_path, {"package/mine.py": loss_with("import scales"), "scales.py": ""})
    written(tmp_path, {"package/__init__.py": "", "package/scales.py": ""})

    files = ["package/__init__.py", "package/mine.py", "scales.py"]
    assert run_ranks(files_of, 1, tmp_path, "package.mine")[0] == files


def test_a_source_is_parsed_once_however_often_a_run_asks(monkeypatch):
    """A run asks at least twice, and a repository of a thousand modules takes seconds to parse."""
    parsed: list[bytes] = []
    monkeypatch.setattr(reachable.ast, "parse", lambda source: parsed.append(source) or ast.Module([], []))
    source = b"import once"

    for _ in range(2):
        reachable._imports_in(source, as_program=False, all_of_it=True)

    assert parsed == [source]


def files_without(gone: str, folder: Path) -> list[str]:
    """Return files_of a run, of which the file `gone` is removed once it was found."""
    found = user_code.reachable

    def find_and_remove(*arguments: Any) -> dict[str, Path]:
        places = found(*arguments)
        (folder / gone).unlink()
        return places

    user_code.reachable = find_and_remove
    return files_of(folder, "mine.py")


def test_a_module_from_elsewhere_is_kept_by_its_name_and_one_that_vanishes_is_left_out(tmp_path):
    written(tmp_path / "a", {"mine.py": loss_with("import helpers, other"), "helpers.py": "", "other.py": ""})
    written(tmp_path / "b", {"mine.py": loss_with("import shared.scales")})
    written(tmp_path / "lib", {"shared/scales.py": "", "shared/__init__.py": ""})

    vanished = run_ranks(files_without, 1, "helpers.py", tmp_path / "a")[0]
    found = run_ranks(files_of, 1, tmp_path / "b", "mine.py", str(tmp_path / "lib"))[0]

    assert vanished == ["mine.py", "other.py"]
    assert found == ["mine.py", "shared/__init__.py", "shared/scales.py"]


def test_the_code_travels_with_the_checkpoint(bucket, digits, tmp_path):
    """Another instance has only the configuration; modules that functions import travel too."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    table, module = with_late_module(example("own_regression", here / "run", digits), here)
    uploaded = changed(table, checkpoint={"uri": f"s3://{bucket}/mine"})

    straight = started_in(here, changed(table, run={"directory": str(here / "straight")}))
    started_in(here, uploaded, stop_at=2)
    resumed = started_in(there, changed(uploaded, run={"directory": str(there / "run")}))

    own = (here / "my_code.py").read_bytes()
    assert (there / "run/code/my_code.py").read_bytes() == own
    assert (there / "run/code/helpers/scales.py").read_bytes() == module.read_bytes()
    assert resumed["resumed_from_step"] == 2
    assert resumed["parameters_sha256"] == straight["parameters_sha256"]
    with zipfile.ZipFile(there / "run/checkpoints/step-6/code.zip") as packed:
        assert packed.read("my_code.py") == own


class Counted:
    """A stream of a known length, whose passes differ."""

    def __init__(self) -> None:
        self.passes: list[int] = []
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self.passes.append(epoch)

    def __len__(self) -> int:
        return 5

    def __iter__(self):
        return iter(torch.arange(5) + 10 * self._epoch)


def test_a_stream_resumes_at_a_position_without_reading_whole_passes():
    samples = Counted()
    reader = OwnReader(Stream(samples, "stream", torch.stack), seed=0)

    batch = reader[SampleOrder(ENDLESS, seed=0, shuffle=False).slice(13, 4)]

    assert batch.inputs.tolist() == [23, 24, 30, 31]
    assert samples.passes == [2, 3]


def test_what_a_sample_draws_leaves_the_generators_of_the_training_alone():
    reader = OwnReader(Stream([torch.zeros(1)], "stream", torch.stack), seed=0)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)

    reader[SampleOrder(ENDLESS, seed=0, shuffle=False).slice(0, 2)]

    assert torch.equal(torch.rand(1), expected)
