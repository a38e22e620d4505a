"""What all tests share: how hypothesis searches."""

from hypothesis import settings

# No deadline: two busy cores make any single example slow once in a while, which says nothing.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
