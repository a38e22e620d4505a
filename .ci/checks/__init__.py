"""The house's own rules, which no common linter has; `.ci/house.py` runs them."""
