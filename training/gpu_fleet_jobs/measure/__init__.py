"""Measurements of instances before they are bought for long: `gpu-fleet poc` submits them as a run."""
