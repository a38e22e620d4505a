"""The proof of a stack in a real account: a small copy comes up, works, is interrupted, is swept, goes."""
