"""The proof of a stack in a real account: a copy comes up, works, is interrupted, is swept, is deleted."""
