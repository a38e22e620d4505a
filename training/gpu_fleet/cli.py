"""The commands of `gpu-fleet train` and `python -m gpu_fleet`; each loads its module when it is called."""

from gpu_fleet.lazy_groups import LazyGroup

main = LazyGroup(
    "gpu_fleet",
    help="Train models that lose no step: prepare data, train, look at what happened.",
    epilog="\b\nExample:\n  gpu-fleet train train training/examples/digits.toml",
    table={
        "bench": "gpu_fleet.train:bench",
        "launch": "gpu_fleet.launch:launch",
        "pack": "gpu_fleet.submitted.pack:pack",
        "prepare": "gpu_fleet.data.preparation.prepare:prepare",
        "queued": "gpu_fleet.submitted.queued:queued",
        "render": "gpu_fleet.kubernetes.command:render",
        "report": "gpu_fleet.metrics.report:report",
        "run": "gpu_fleet.any_command:run",
        "train": "gpu_fleet.train:train",
        "work": "gpu_fleet.submitted.work:work",
    },
)
