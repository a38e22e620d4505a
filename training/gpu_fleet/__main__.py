"""`python -m gpu_fleet` is `gpu-fleet train`; the commands live in gpu_fleet.cli."""

from gpu_fleet.cli import main

if __name__ == "__main__":
    main(prog_name="gpu-fleet train")
