"""The commands of `python -m training`; each loads its own module when it is called."""

from training.commands import LazyGroup

main = LazyGroup(
    "training",
    help="Train models that lose no step: prepare data, train, look at what happened.",
    table={
        "bench": "training.bench:bench",
        "launch": "training.launch:launch",
        "prepare": "training.prepare:prepare",
        "report": "training.report:report",
        "train": "training.train:train",
    },
)
