"""Advice: the memory and arithmetic of a training run, and the cheapest instances that finish it."""
