"""Files from the checkout for an instance: the payload, and the user data that fetches it."""
