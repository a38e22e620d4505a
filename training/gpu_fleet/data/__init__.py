"""The samples: dataset.py what each kind offers, order.py in which order, loader.py as batches."""
