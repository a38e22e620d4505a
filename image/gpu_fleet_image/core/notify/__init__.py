"""Notices to users, owners, chat rooms and operators: their texts, and who was reached."""
