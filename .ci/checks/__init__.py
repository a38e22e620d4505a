"""The house's own rules, which no linter of the field knows; `.ci/house.py` runs them."""
