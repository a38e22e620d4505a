"""Cost of a stack per hour and per month. In: settings, prices. Out: lines, a sum, a page, a verdict."""
