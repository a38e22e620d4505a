"""Tests of ``gpu-fleet poc``."""
