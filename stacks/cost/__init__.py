"""What a stack costs for an hour and a month. In: settings and prices; out: lines, a sum, a page."""
