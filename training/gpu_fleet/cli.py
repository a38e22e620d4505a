"""The commands of `gpu-fleet train` and `python -m gpu_fleet`; each loads its module when it is called."""

from gpu_fleet.core.lazy_groups import LazyGroup

main = LazyGroup(
    "gpu_fleet",
    help="Train models with exact resume: prepare data, train, report.",
    epilog="\b\nExample:\n  gpu-fleet train start digits.toml",
    table={
        "bench": "gpu_fleet_jobs.measure.command:bench",
        "contents": "gpu_fleet_jobs.submitted.contents:contents",
        "launch": "gpu_fleet_jobs.launch.launch:launch",
        "measure": "gpu_fleet_jobs.measure.command:measure",
        "pack": "gpu_fleet_jobs.submitted.pack:pack",
        "prepare": "gpu_fleet.data.preparation.prepare:prepare",
        "queued": "gpu_fleet_jobs.submitted.queued:queued",
        "render": "gpu_fleet_jobs.kubernetes.command:render",
        "report": "gpu_fleet.metrics.report:report",
        "run": "gpu_fleet.integrations.command:run",
        "start": "gpu_fleet.trainer.train:start",
        "work": "gpu_fleet_jobs.submitted.work:work",
    },
)
