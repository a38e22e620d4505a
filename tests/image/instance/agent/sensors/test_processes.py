"""Command lines that are work, and those of a kernel or a terminal."""

from pathlib import Path

from gpu_fleet_image.instance.agent.sensors.commands import is_trainer, is_watched, kernel_id
from gpu_fleet_image.instance.agent.sensors.processes import Process, terminal_path

WORK = [
    "torchrun --nproc-per-node 8 train.py",
    "/opt/gpu-fleet/venv/bin/python3 /opt/gpu-fleet/venv/bin/torchrun train.py",
    "python -m torch.distributed.run train.py",
    "python -u -m torch.distributed.launch train.py",
    "/opt/venv/bin/python /opt/venv/bin/accelerate launch train.py",
    "accelerate-launch train.py",
    "python3.11 -I -X dev /opt/venv/bin/torchrun train.py",
    "python -um torch.distributed.run train.py",
    "python -m coverage run -m torch.distributed.run train.py",
    "/usr/bin/python3.12-dbg -m torch.distributed.run train.py",
    "/opt/venv/bin/pypy3 -m torch.distributed.run train.py",
    "python /opt/conda/bin/conda run python -m torch.distributed.run",
    "/lib64/ld-linux-x86-64.so.2 /opt/venv/bin/python -m torch.distributed.run train.py",
    "bash entrypoint.sh python -m torch.distributed.run train.py",
    "env LANG=C python -m accelerate.commands.launch train.py",
    "timeout 9h python3 -m torch.distributed.run train.py",
    "numactl -m 0 python -m torch.distributed.run train.py",
    "nice nohup taskset python -m torch.distributed.run",
    "sudo -E /opt/venv/bin/python -m deepspeed.launcher.runner train.py",
    "nsys profile python -m torch.distributed.run train.py",
    "uv run -m torch.distributed.run train.py",
    "uv run python -m torch.distributed.run train.py",
    "coverage run -m torch.distributed.run train.py",
    "/bin/bash -e /opt/intel/mpi/bin/mpirun -n 16 ./solver",
    "deepspeed --num_gpus 8 train.py",
    "python -u -m deepspeed.launcher.launch --world_info=x train.py",
    "/opt/gpu-fleet/venv/bin/python -m gpu_fleet work",
    "mpirun -n 16 ./solver",
    "prterun -n 2 sleep 15",
    "/usr/bin/orted -mca ess env",
    "srun --ntasks 16 python train.py",
    "salloc --gpus=1 bash",
    "sbatch --wait job.sh",
    "slurmstepd:_[12.0]",
    "ray::train_fn",
    "ray::Trainer.step",
    "ray::Trainer",
    "/opt/venv/bin/python /opt/venv/bin/ray job submit -- python train.py",
    "rsync -a /data/ /scratch/data/",
    "docker build -t x .",
    "docker buildx build .",
    "docker --context far build .",
    "buildctl build --frontend dockerfile.v0",
]
NO_WORK = [
    "/opt/gpu-fleet/venv/bin/python -m gpu_fleet report runs/work",
    "vim -m gpu_fleet",
    "git commit -m torch.distributed.",
    "git commit -am torch.distributed.",
    "git commit -m python -m torch.distributed.",
    "sudo git commit -m torch.distributed.",
    "bash release.sh -m torch.distributed.",
    "timeout 9 grep -rm torch.distributed.run python",
    "grep -rm torch.distributed.run .",
    "less -m accelerate.commands.launch",
    "",
    "rsync --daemon --no-detach",
    "docker ps",
    "dockerd -H fd://",
    "docker run --name build-box ubuntu sleep build",
    "python train.py",
    "vim torchrun.md",
    "vim torchrun",
    "less /usr/bin/mpirun",
    "man srun",
    "tail -f accelerate",
    "python train.py torchrun",
    "bash -c true mpirun",
    "slurmstepd infinity",
    "ray::IDLE",
    "ray::IDLE_SpillWorker",
    "ray::DashboardAgent",
    "ray start --head --block",
    "python -m http.server",
    "buildkitd",
]


# A title that a process gave itself is one word; "_" stands for its blanks here.
def command_of(line):
    return [word.replace("_[", " [") for word in line.split()]


def test_work_is_known_by_its_command():
    assert [line for line in WORK if not is_watched(command_of(line))] == []
    assert [line for line in NO_WORK if is_watched(command_of(line))] == []


def test_the_stack_s_own_words_are_program_names():
    words = frozenset({"blender"})

    assert is_watched(["/opt/blender/blender", "-b"], words)
    assert is_watched(["python3", "/home/bob/blender"], words)
    assert not is_watched(["vim", "-R", "blender"], words)


def test_the_trainer_itself_trains():
    trains = {
        "python -m gpu_fleet start": True,
        "timeout 9h nice -n 5 python -u -m gpu_fleet start": True,
        "uv run -m gpu_fleet": True,
        "python -m http.server": False,
        "grep -m gpu_fleet": False,
        "git commit -m gpu_fleet": False,
        "sudo grep -m gpu_fleet": False,
        "": False,
    }

    assert {line: is_trainer(line.split()) for line in trains} == trains


def test_a_kernel_of_any_language_is_known_by_its_connection_file():
    folder = "/home/bob/.local/share/jupyter/runtime"
    kernels = {
        f"python -m ipykernel_launcher -f {folder}/kernel-1a-2b.json": "1a-2b",
        "R --slave -e IRkernel::main() --args /tmp/kernel-9.json": "9",
        "jupyter lab": None,
        "vim kernel.json": None,
    }

    assert {line: kernel_id(line.split()) for line in kernels} == kernels


def test_a_terminal_is_found_by_its_device_number():
    paths = {
        136 << 8 | 3: Path("/proc/7/root/dev/pts/3"),
        136 << 8 | 0x2C | 1 << 20: Path("/proc/7/root/dev/pts/300"),
        4 << 8 | 1: Path("/dev/tty1"),
        4 << 8 | 64: Path("/dev/ttyS0"),
        0: None,
    }

    assert {number: terminal_path(Process(7, ("bash",), terminal=number)) for number in paths} == paths
