"""The mover: it starts the instances of each pool and gives them to those who asked. See README.md."""
