"""Prices as the clouds list them today, written into catalog.toml and prices.toml."""
