"""Picture of a stack. In: settings, cost. Out: an SVG with its network, pools, storage, budget and prices."""
