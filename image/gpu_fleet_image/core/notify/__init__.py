"""Notices to users, owners, rooms and operators: what they say, and who was reached."""
