"""`gpu-fleet poc`: instances of a pool are taken, measured, judged against limits, and given back."""
