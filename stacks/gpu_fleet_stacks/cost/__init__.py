"""Cost of a stack for an hour and a month. In: settings, prices; out: lines, a sum, a page, a verdict."""
