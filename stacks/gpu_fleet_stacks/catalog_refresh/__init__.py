"""Today's list prices of the clouds, written into catalog.toml and prices.toml."""
