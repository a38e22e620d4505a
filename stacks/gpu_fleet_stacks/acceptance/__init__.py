"""Acceptance run: prove a stack in a real account with a small copy, and delete the copy afterwards."""
