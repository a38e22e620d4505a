"""The samples: dataset.py defines data sets, order.py the order of samples, loader.py the batches."""
