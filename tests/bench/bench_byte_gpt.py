"""A small decoder on the bytes of the standard library against gzip -9 on the same held-out files.

Most of an hour on two free CPU cores: twenty million bytes of training, two million held out.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

from gpu_fleet.cli import main as training_command
from tests.bench.entries import entry
from tests.training.programs import ROOT, torchrun

COMMAND = "python -m tests.bench.bench_byte_gpt"
LIMIT_S = 3 * 3600.0


def main() -> None:
    """Prints the entry as one JSON object."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        data, directory = Path(name) / "data", Path(name) / "run"
        done = CliRunner().invoke(training_command, ["prepare", "tokens", str(data)])
        assert done.exit_code == 0, done.output
        example = ROOT / "training/examples/byte_gpt.toml"
        with torchrun(example, "--data.path", data, "--run.directory", directory, limit_s=LIMIT_S) as program:
            assert program.finish() == 0, program.said
        result = json.loads((directory / "result.json").read_text())
    found = entry(result["metric"], result["metric_name"], result["baseline"], "ratio < 1", command=COMMAND)
    sys.stdout.write(json.dumps({"byte_gpt_bits_per_byte": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
