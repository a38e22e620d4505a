"""The commands of `gpu-fleet train`, and of `python -m training`; each loads its module when it is called."""

from training.commands import LazyGroup

main = LazyGroup(
    "training",
    help="Train models that lose no step: prepare data, train, look at what happened.",
    epilog="\b\nExample:\n  gpu-fleet train train training/examples/digits.toml",
    table={
        "bench": "training.bench:bench",
        "launch": "training.launch:launch",
        "prepare": "training.prepare:prepare",
        "report": "training.report:report",
        "train": "training.train:train",
    },
)
