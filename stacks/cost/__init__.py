"""What a stack costs for an hour and a month. In: settings, prices; out: lines, a sum, a page, a verdict."""
