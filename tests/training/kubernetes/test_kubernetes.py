"""Manifests for a user's cluster: valid by two versions of Kubernetes, true to the exit codes."""

import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import yaml
from click.testing import CliRunner

from gpu_fleet.cli import main
from gpu_fleet.core import exit_codes
from gpu_fleet_jobs.kubernetes import sources
from gpu_fleet_jobs.kubernetes.request import Claim, default_name, parse_claim
from gpu_fleet_jobs.kubernetes.sources import LIMIT_BYTES
from tests.ran import ran
from tests.training.kubernetes.manifests.excerpt import KUBERNETES
from tests.training.kubernetes.manifests.pods import action
from tests.training.kubernetes.manifests.schemas import problems
from tests.training.programs import DIGITS, ROOT

IMAGE = f"ghcr.io/you/trainer@sha256:{'0' * 64}"
PLAIN = ("--nodes", "2", "--gpus", "8", "--claim", "datasets", "--image", IMAGE)
BUCKET = ("--checkpoint.uri", "s3://bucket/you/digits")
EVERYTHING = (
    *PLAIN,
    *BUCKET,
    *("--queue", "gpus", "--namespace", "research", "--service-account", "trainer", "--efa", "32"),
    *("--hugepages", "5120Mi", "--memory", "900Gi", "--cpu", "96", "--shm-gib", "64"),
    *("--claim", "scratch:/scratch"),
    *("--node-selector", "node.kubernetes.io/instance-type=p5.48xlarge", "--user", "2000", "--retries", "9"),
)


def run(*arguments: str, kind: str = "--kubernetes", file: Path = DIGITS) -> Any:
    return CliRunner().invoke(main, ["render", kind, str(file), *arguments])


def rendered(*arguments: str, kind: str = "--kubernetes", file: Path = DIGITS) -> list[dict[str, Any]]:
    result = run(*arguments, kind=kind, file=file)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def pod_of(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    last = next(manifest for manifest in manifests if manifest["kind"] in ("Job", "TrainingRuntime"))
    spec = last["spec"]
    if last["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


RENDERINGS = [
    ("--kubernetes", (*PLAIN, *BUCKET)),
    ("--kubernetes", EVERYTHING),
    ("--kubernetes", ("--gpus", "0", "--image", IMAGE, "--claim", "datasets", *BUCKET)),
    ("--trainjob", (*PLAIN, *BUCKET)),
    ("--trainjob", EVERYTHING),
]


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_rendering_is_valid_in_two_versions(version):
    for kind, arguments in RENDERINGS:
        manifests = rendered(*arguments, kind=kind)

        assert len(manifests) == 3
        assert [problem for manifest in manifests for problem in problems(manifest, version)] == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_a_wrong_job_is_refused(version):
    unknown_field, wrong_type = (of_kind(rendered(*PLAIN, *BUCKET), "Job") for _ in range(2))
    unknown_field["spec"]["backoffLimitPerPod"] = 3
    wrong_type["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = ["nvidia.com/gpu: 8"]

    assert [len(problems(job, version)) for job in (unknown_field, wrong_type)] == [1, 1]


@pytest.mark.parametrize("kind", ["--kubernetes", "--trainjob"])
def test_kueue_can_take_the_run(kind):
    """Kueue builds a Workload from the label and the pods; it fits Kueue's own schema."""
    manifests = rendered(*EVERYTHING, kind=kind)
    queued = of_kind(manifests, "Job" if kind == "--kubernetes" else "TrainJob")
    pods = {"name": "main", "count": 2, "template": {"spec": pod_of(manifests)}}
    labels = queued["metadata"]["labels"]
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "spec": {"queueName": labels["kueue.x-k8s.io/queue-name"], "podSets": [pods]},
    }

    assert problems(workload) == []
    assert queued["spec"]["suspend"] is True
    assert problems(workload | {"spec": {"queueName": "No Queue", "podSets": [pods]}}) != []
    others = [manifest["metadata"]["labels"] for manifest in manifests if manifest is not queued]
    assert all("kueue.x-k8s.io/queue-name" not in found for found in others)


def test_without_a_queue_the_run_begins_at_once_and_a_drained_pod_is_never_counted():
    job = of_kind(rendered(*PLAIN, *BUCKET), "Job")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    first = next(rule for rule in rules if "onPodConditions" in rule or rule["action"] == "Count")

    assert "suspend" not in job["spec"]
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    assert first["action"] == "Ignore"
    assert first["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


@pytest.mark.parametrize("kind", ["--kubernetes", "--trainjob"])
def test_the_job_obeys_the_table_of_exit_statuses(kind):
    manifests = rendered(*PLAIN, *BUCKET, kind=kind)
    job = of_kind(manifests, "Job" if kind == "--kubernetes" else "TrainingRuntime")["spec"]
    if kind == "--trainjob":
        job = job["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    policy = job["podFailurePolicy"]
    names = {rule["onExitCodes"]["containerName"] for rule in policy["rules"] if "onExitCodes" in rule}

    for status in range(1, 256):
        final = status in (exit_codes.USAGE, exit_codes.FAILED_FOR_GOOD)
        expected = "FailJob" if final else "Count"
        assert action(policy, status) == ("Ignore" if status == exit_codes.STOPPED else expected), status
    assert action(policy, exit_codes.FAILED_FOR_GOOD, disrupted=True) == "FailJob"
    assert names == {job["template"]["spec"]["containers"][0]["name"]}
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # else the policy is refused


def test_all_pods_know_pod_0_by_a_name_that_stays():
    manifests = rendered(*PLAIN, *BUCKET)
    service, job, pod = of_kind(manifests, "Service"), of_kind(manifests, "Job"), pod_of(manifests)
    variables = {variable["name"]: variable for variable in pod["containers"][0]["env"]}

    assert variables["PET_MASTER_ADDR"]["value"] == "digits-0.digits"
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"] == "digits"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "digits"}
    counted = tuple(job["spec"][key] for key in ("completionMode", "completions", "parallelism"))
    assert counted == ("Indexed", 2, 2)
    assert "job-completion-index" in variables["PET_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]


def test_kubeflow_trainer_sets_the_variables_of_torchrun_itself():
    manifests = rendered(*PLAIN, *BUCKET, kind="--trainjob")
    train_job, runtime = of_kind(manifests, "TrainJob"), of_kind(manifests, "TrainingRuntime")
    names = {variable["name"] for variable in pod_of(manifests)["containers"][0]["env"]}

    assert not {name for name in names if name.startswith("PET_")}
    assert train_job["spec"]["trainer"] == {"numNodes": 2, "numProcPerNode": 8}
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert pod_of(manifests)["containers"][0]["name"] == "node"  # Trainer looks for this one


def test_a_pod_fits_the_restricted_standard_and_has_what_was_asked_for():
    pod = pod_of(rendered(*EVERYTHING))
    container = pod["containers"][0]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    variables = {variable["name"] for variable in container["env"]}

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 2000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    kinds = {key for volume in pod["volumes"] for key in volume if key != "name"}
    assert kinds == {"emptyDir", "configMap", "persistentVolumeClaim"}
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"] == {
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "32",
        "hugepages-2Mi": "5120Mi",
        "cpu": "96",
        "memory": "900Gi",
    }
    assert mounted["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert mounted["/workspace/data"]["persistentVolumeClaim"] == {"claimName": "datasets"}
    assert mounted["/scratch"]["persistentVolumeClaim"] == {"claimName": "scratch"}
    assert pod["serviceAccountName"] == "trainer"
    assert "FI_PROVIDER" in variables
    assert "FI_EFA_USE_HUGE_PAGE" not in variables  # asked for


BAD_INPUT = [
    (("--namespace", "My_Team"), "--namespace = 'My_Team': must be a DNS label"),
    (("--name", "9lives"), "--name = '9lives': must be a DNS label"),
    (("--name", "n" * 60), "must be a DNS label of at most 44 characters"),
    (("--nodes", "0"), "--nodes = 0: must be at least 1"),
    (("--gpus", "-1"), "--gpus = -1: must be at least 0"),
    (("--nodes", "3"), "run.batch_size = 64 does not divide into 24 ranks"),
    (("--image", "Trainer:1"), "--image = 'Trainer:1': must be REGISTRY/NAME:TAG"),
    (("--queue", "a b"), "--queue = 'a b': must be the name of an object"),
    (("--service-account", "Trainer"), "--service-account = 'Trainer': must be the name"),
    (("--memory", "lots"), "--memory = 'lots': must be a quantity of Kubernetes"),
    (("--hugepages", "5120Mi"), "--hugepages = '5120Mi': needs --memory"),
    (("--user", "0"), "--user = 0: must be at least 1"),
    (("--claim", "data:../up"), "--claim = 'data:../up': the folder must be one below"),
    (("--claim", "other:data"), "two volumes cannot both be /workspace/data"),
    (("--node-selector", "p5"), "--node-selector = 'p5': write KEY=VALUE"),
    (("--run.epoch", "1"), "run.epoch: unknown key; did you mean epochs?"),
    (("--checkpoint.uri", "none"), "checkpoint.uri = 'none': a pod's own disk is lost with the pod"),
    (("--checkpoint.uri", "oss://b/p"), "checkpoint.endpoint = '': must be the endpoint of OSS"),
    (("--data.path", "corpora/web"), "set --claim NAME:corpora"),
    (("--model.weights", "../llama"), "model.weights = '../llama': is on this computer"),
]


def wrong(arguments: tuple[str, ...], message: str) -> bool:
    """Return whether the answer to this input is not one message on stderr with nothing on stdout."""
    result = run(*PLAIN, *BUCKET, *arguments)
    said = result.stderr
    return (
        result.exit_code != exit_codes.FAILED_FOR_GOOD
        or message not in said
        or not said.startswith("error: ")
        or "Traceback" in result.output
        or result.stdout != ""
    )


def test_bad_input_is_one_message_and_no_manifest():
    assert [arguments for arguments, message in BAD_INPUT if wrong(arguments, message)] == []
    both = run(*PLAIN, *BUCKET, "--namespace", "My_Team", "--queue", "a b").stderr
    assert ("--namespace" in both, "--queue" in both) == (True, True)


def test_an_image_without_digest_is_warned_about_and_a_missing_kind_named():
    with_digest = run(*PLAIN, *BUCKET, "--service-account", "trainer")
    without = run(*PLAIN, "--claim", "results:runs", "--image", "ghcr.io/you/trainer:1")  # and no bucket
    without_kind = CliRunner().invoke(main, ["render", str(DIGITS), "--image", IMAGE])

    assert with_digest.stderr == ""
    assert without.exit_code == 0
    assert "warning: --image = 'ghcr.io/you/trainer:1': has no digest" in without.stderr
    assert "give --kubernetes for an Indexed Job, or --trainjob" in without_kind.stderr


def test_the_configuration_and_own_code_lie_in_the_pod_as_they_lie_here(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.py").write_text(
        "from mine import parts\n\n\ndef build():\n    import late\n\n    return parts.layer(late)\n"
    )
    (tmp_path / "mine" / "parts.py").write_text("def layer(of):\n    return None\n")
    (tmp_path / "late.py").write_text("import later\n")  # nothing has loaded these when manifests are written
    (tmp_path / "later.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    table = {
        "run": {"directory": "runs/a", "steps": 1},
        "model": {"name": "mine.model:build"},
        "data": {"path": "data/d"},
    }
    (tmp_path / "run.toml").write_text(tomli_w.dumps(table))

    words = [sys.executable, "-m", "gpu_fleet", "render", "--kubernetes", "run.toml", *PLAIN, *BUCKET]
    made = ran(
        [*words, "--out", "k.yaml"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "training")},
    )

    assert made.returncode == 0, made.stderr
    manifests = list(yaml.safe_load_all((tmp_path / "k.yaml").read_text()))
    data = of_kind(manifests, "ConfigMap")["data"]
    mounts = pod_of(manifests)["containers"][0]["volumeMounts"]
    laid = {mount["mountPath"]: data[mount["subPath"]] for mount in mounts if "subPath" in mount}
    assert laid == {
        f"/workspace/{name}": (tmp_path / name).read_text()
        for name in ("run.toml", "mine/model.py", "mine/parts.py", "late.py", "later.py")
    }
    assert [problem for manifest in manifests for problem in problems(manifest)] == []


def test_more_than_a_config_map_holds_is_refused_with_what_to_do(tmp_path):
    large = tmp_path / "large.toml"
    large.write_text(f"{DIGITS.read_text()}# {'x' * LIMIT_BYTES}\n")

    result = run(*PLAIN, *BUCKET, file=large)

    assert result.exit_code == exit_codes.FAILED_FOR_GOOD
    assert "a ConfigMap holds 1,048,576; install your code in an image of your own" in result.stderr
    assert "large.toml 1,04" in result.stderr


def test_a_name_is_made_of_the_run_directory_and_files_of_one_name_keep_apart():
    first = sources.key_of("a/b.py", set())

    assert (default_name("runs/7 LLaMA_8b.v2"), default_name("runs/42")) == ("llama-8b-v2", "")
    assert sources.key_of("a_b.py", set()) == first
    assert sources.key_of("a_b.py", {first}) != first


def test_overrides_are_arguments_as_they_are_written_and_the_last_save_has_its_time():
    words = ("--interrupt.save_s", "240", "--optimizer.learning_rate", "1e-3")
    text = run(
        *(*PLAIN, *BUCKET, *words, "--node-selector", "rack=098", "--model.options", '{text = "$(HOME)"}')
    ).stdout
    pod = pod_of(list(yaml.safe_load_all(text)))
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    assert "- '1e-3'\n" in text  # a cluster would read these as numbers, and put in the variable
    assert "rack: '098'\n" in text
    assert pod["containers"][0]["args"][-1] == '{text = "$$(HOME)"}'
    assert pod["terminationGracePeriodSeconds"] == 240 + 30
    assert volumes["shm"]["emptyDir"]["sizeLimit"] == "16Gi"  # of eight processes


def test_a_claim_is_the_folder_data_unless_another_is_named():
    data = parse_claim("datasets")

    assert str(data.folder) == "/workspace/data"
    assert data.holds("data/digits")
    assert not data.holds("database")
    assert parse_claim("scratch:/scratch") == Claim("scratch", parse_claim("x:/scratch").folder)
