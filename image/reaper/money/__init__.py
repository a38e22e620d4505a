"""What the stack costs: the meter, the freeze, and what a day was worth."""
