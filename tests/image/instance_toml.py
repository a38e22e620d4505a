"""An ``instance.toml`` as the stack writes it."""

INSTANCE_TOML = """
schema_version = 1
cloud = "aws"
region = "us-east-1"
stack = "aws-dev"
pool = "dev"
market = "on-demand"
checkpoint_uri = "s3://made-up/dev"
data_uri = "s3://made-up"
metric_namespace = "GpuFleet/aws-dev"
records_uri = "s3://made-up/reaper"
lifecycle_hook = "gpu-fleet-drain"
home_file_system = ""
[expected."g5.xlarge"]
gpus = 1
gpu_memory_gib = 24
efa_interfaces = 0
"""
