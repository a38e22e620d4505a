"""Tests of the measurements that `gpu-fleet poc` submits."""
