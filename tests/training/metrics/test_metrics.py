"""Metrics: the measurements are right, and every writer has the same numbers in its own format."""

import errno
import io
import logging
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter
from torch._subclasses.fake_tensor import FakeTensor

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError
from gpu_fleet.metrics.flops import PEAKS, flops_per_sample, peak_of, utilisation
from gpu_fleet.metrics.records import JsonLines, named, read_json_lines
from gpu_fleet.metrics.writers import ProgressLine, ProgressLog, Prometheus, open_writers
from gpu_fleet.models import definitions, registry

RECORD = {"kind": "train", "step": 10, "loss": 2.5, "metric_name": "accuracy"}


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class Noting(torch.nn.Linear):
    """Writer that notes its arguments."""

    def forward(self, inputs):
        self.called_with = type(inputs)
        return super().forward(inputs)


def test_a_model_is_counted_by_its_shapes_without_computing_anything():
    layer = Noting(16, 32, bias=False)

    assert flops_per_sample(layer, torch.zeros(1, 16)) == 6 * 16 * 32
    assert layer.called_with is FakeTensor


@pytest.mark.parametrize("length", [32, 128])
def test_counting_agrees_with_the_formula_of_palm(length):
    """Appendix B, for a decoder: 6 N + 12 L H Q T, for N parameters in products and T tokens."""
    width, layers, vocabulary = 64, 3, 257
    facts = definitions.Facts(vocabulary=vocabulary, sequence_length=length)
    options = {"hidden_size": width, "layers": layers, "heads": 4}
    model = registry.build("gpt2", options, facts, "tokens")

    counted = flops_per_sample(model, torch.zeros(1, length, dtype=torch.int64))

    looked_up = length * width  # the positions; the words are also the last layer
    formula = 6.0 * (parameters(model) - looked_up) + 12.0 * layers * width * length
    assert counted == pytest.approx(formula * length, rel=0.02)  # it counts biases and norms as products


def test_resnet50_costs_what_is_published():
    model = registry.build("resnet50", {}, definitions.Facts(classes=1000), "images")

    counted = flops_per_sample(model, torch.zeros(1, 3, 224, 224, dtype=torch.uint8))

    multiply_adds_of_v15 = 4.09e9  # of torchvision's resnet50 at 224 pixels
    assert counted == pytest.approx(3 * 2 * multiply_adds_of_v15, rel=0.01)


def test_a_sample_on_another_device_than_the_model_is_counted():
    with torch.device("meta"):  # as a model on the CPU whose first batch is on a GPU, which CI lacks
        layer = torch.nn.Linear(16, 32, bias=False)

    assert flops_per_sample(layer, torch.zeros(1, 16)) == 6 * 16 * 32


def test_a_model_whose_operations_cannot_be_counted_trains_without_the_figure(caplog):
    class Skips(torch.nn.Linear):
        """Model that reads the value of a tensor, which a fake tensor lacks."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) if float(inputs.sum()) else inputs

    assert utilisation(Skips(4, 4), torch.ones(1, 4), "NVIDIA H200", "bf16", devices=1) is None
    assert "operations-not-counted" in caplog.text


def test_counting_leaves_the_model_and_the_generator_alone():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()

    flops_per_sample(model, torch.ones(1, 4))

    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_gpu_is_known_by_the_name_that_cuda_reports():
    rows = {
        **{f"NVIDIA {row}": row for row in ("H200", "H20", "H100 80GB HBM3", "H100 PCIe", "A10G", "A10")},
        **{f"NVIDIA {row}": row for row in ("L40S", "L4", "B200")},
        "NVIDIA A100-SXM4-40GB": "A100",
        "Tesla T4": "T4",
        "Tesla V100-SXM2-16GB": "V100-SXM2",
    }

    assert {name: peak_of(name, "fp16") for name in rows} == {
        name: PEAKS[row].fp16 * 1e12 for name, row in rows.items()
    }
    assert peak_of("NVIDIA GeForce RTX 3090", "bf16") is None
    assert peak_of("Tesla T4", "bf16") is None


def test_utilisation_is_the_fraction_of_the_peak_of_all_devices():
    model, sample = torch.nn.Linear(1000, 1000, bias=False), torch.zeros(1, 1000)

    found = utilisation(model, sample, "NVIDIA H200", "bf16", devices=2)

    half_of_two_gpus = 989.5e12 / 6e6
    assert found.of(half_of_two_gpus) == pytest.approx(0.5)


def test_a_killed_run_costs_no_record_of_the_next(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'12\n\xff\n{"kind": "tra')

    writer = JsonLines(file)
    writer.write(RECORD)
    writer.close()

    assert read_json_lines(file) == [RECORD]


def test_a_file_that_cannot_be_written_is_reported_by_its_key():
    with (
        pytest.raises(ConfigError, match=r"run.directory = 'here': cannot be written: Input/output error"),
        named("run.directory", Path("here")),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_full_disk_is_no_error_of_the_configuration():
    """It may have room at the next try."""
    with pytest.raises(OSError, match="No space left on device"):
        JsonLines(Path("/dev/full")).write(RECORD)


def curves(folder: Path) -> set[tuple[str, int, float]]:
    """Return tag, step and value of every scalar in the event files of a folder."""
    found = set()
    for file in folder.iterdir():
        content = file.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            found |= {(value.tag, event.step, value.simple_value) for value in event.summary.value}
            content = content[16 + length :]
    return found


def test_every_writer_of_the_configuration_is_opened_and_events_have_the_checksums_of_tensorboard(tmp_path):
    chosen = config.Metrics(tensorboard=True, progress=False, prometheus_file=str(tmp_path / "run.prom"))
    writer = open_writers(chosen, tmp_path, steps=20)
    writer.write(RECORD)
    writer.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    first = file.read_bytes()[: 16 + int.from_bytes(file.read_bytes()[:8], "little")]

    again = RecordWriter(str(tmp_path / "again"))
    again.write(first[12:-4])
    again.close()

    assert (tmp_path / "again").read_bytes() == first
    assert curves(tmp_path / "tensorboard") == {("train/loss", 10, 2.5)}
    assert read_json_lines(tmp_path / "metrics.jsonl") == [RECORD]
    assert "gpu_fleet_training_train_loss" in (tmp_path / "run.prom").read_text()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("run.txt", r"the textfile collector reads only \*.prom"),
        ("absent/run.prom", r"metrics.prometheus_file = .*absent/run.prom"),
    ],
)
def test_a_prometheus_file_that_no_exporter_would_read_or_that_cannot_be_written_is_named(
    file, message, tmp_path
):
    with pytest.raises(ConfigError, match=message):
        open_writers(config.Metrics(prometheus_file=str(tmp_path / file)), tmp_path, steps=20)


def test_the_prometheus_file_is_replaced_as_a_whole_with_the_values_of_each_kind(tmp_path):
    writer = Prometheus(tmp_path / "run.prom", {"run": "first"})
    before = (tmp_path / "run.prom").stat().st_ino

    writer.write(RECORD)
    after = (tmp_path / "run.prom").stat().st_ino
    writer.write({"kind": "evaluation", "step": 10, "loss": 1.5})

    text = (tmp_path / "run.prom").read_text()
    assert 'gpu_fleet_training_train_loss{run="first"} 2.5\n' in text
    assert 'gpu_fleet_training_evaluation_loss{run="first"} 1.5\n' in text
    assert after != before
    assert [file.name for file in tmp_path.iterdir()] == ["run.prom"]
    assert (tmp_path / "run.prom").stat().st_mode & 0o777 == 0o644


@pytest.fixture(scope="module")
def any_file(tmp_path_factory):
    return tmp_path_factory.mktemp("prometheus") / "run.prom"


@given(st.text(st.characters(codec="utf-8")), st.floats())
def test_any_label_and_value_are_read_back_as_they_were(any_file, label, value):
    writer = Prometheus(any_file, {"run": label})

    writer.write({"kind": "train", "loss per token": value})

    (family,) = text_string_to_metric_families(any_file.read_bytes().decode())
    (sample,) = family.samples
    assert (sample.name, sample.labels) == ("gpu_fleet_training_train_loss_per_token", {"run": label})
    assert sample.value == value or math.isnan(value)


def test_the_progress_line_shows_step_loss_and_rate():
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    line = ProgressLine(steps=40, console=screen)

    line.write({**RECORD, "samples_per_s": 1234.5, "mfu": 0.41})
    line.close()

    shown = screen.file.getvalue()
    assert "10/40" in shown
    assert "loss 2.5  1,234 samples/s  41.0 % of the peak" in shown


def test_a_run_without_a_terminal_logs_its_loss(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sys, "stderr", io.StringIO())

    open_writers(config.Metrics(), tmp_path, 40).write({**RECORD, "samples_per_s": 64.0, "step_s": 2.0})

    assert caplog.messages == ["event=progress step=10 of=40 loss=2.5 samples_per_s=64 left=0:01:00"]


def test_the_log_of_a_long_run_is_short(caplog):
    caplog.set_level(logging.INFO)
    now_s, day = 0, 24 * 3600
    writer = ProgressLog(day, clock=lambda: now_s)

    for now_s in range(1, day + 1):
        writer.write({**RECORD, "step": now_s, "samples_per_s": 64.0, "step_s": 1.0})

    assert 300 < len(caplog.messages) < 600
    assert "step=86400" in caplog.messages[-1]


def test_log_lines_go_through_the_progress_line_while_it_is_shown(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    handler = logging.StreamHandler(sys.stderr)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    before = sys.stderr

    line = ProgressLine(steps=40, console=screen)
    handler.emit(logging.LogRecord("test", logging.INFO, "", 0, "event=checkpoint", None, None))
    line.close()

    assert "event=checkpoint" in screen.file.getvalue()
    assert handler.stream is before
