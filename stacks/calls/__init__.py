"""Questions to the clouds: one call each, and one sentence where there is no answer."""
