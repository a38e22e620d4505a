"""`python -m training`: the commands live in training.cli."""

from training.cli import main

if __name__ == "__main__":
    main()
