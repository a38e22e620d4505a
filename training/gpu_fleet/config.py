"""The configuration: a TOML file and `--section.key value` overrides, checked once, every error at once."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gpu_fleet.errors import ConfigError, suggestion

LOCAL_ONLY = "none"  # checkpoint.uri on an instance of a fleet that is to upload nothing
BUILT_IN_OPTIMIZERS = ("adamw", "sgd")
MEANS = ("targets", "samples")


def _an_optimizer(name: str) -> str:
    if name not in BUILT_IN_OPTIMIZERS and ":" not in name:
        raise PydanticCustomError(
            "optimizer", "input should be 'adamw' or 'sgd', or FILE.py:NAME of your own"
        )
    return name


def _a_path(path: str) -> str:
    if path.startswith("~"):  # a run may be sent to an instance where another home would be meant
        raise PydanticCustomError("path", "only a shell knows what ~ is; write the whole path")
    return path


def _a_mean(name: str) -> str:
    if name not in MEANS and ":" not in name:
        raise PydanticCustomError(
            "mean", "input should be 'targets' or 'samples', or FILE.py:NAME of what counts them in a batch"
        )
    return name


Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Place = Annotated[str, AfterValidator(_a_path)]
OptimizerName = Annotated[str, AfterValidator(_an_optimizer)]
MeanOver = Annotated[str, AfterValidator(_a_mean)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Frozen, no unknown keys, no silent conversions: "1" is not 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _refuse(section: Section, keys: Iterable[str], why: str) -> None:
    """Raises ValueError for a key that was set and that nothing would read."""
    for key in keys:
        if (value := getattr(section, key)) != type(section).model_fields[key].default:
            raise ValueError(f"{key} = {value!r} {why}")


class RunSection(Section):
    """What is run, for how long, and where its files go. Exactly one of `epochs` and `steps` is set."""

    directory: Annotated[str, Field(min_length=1), AfterValidator(_a_path)] = "runs/default"
    branch_of: str = ""  # run.directory of the run whose newest weights this one begins with: --branch
    owner: str = ""  # whose run it is, a part of its place in the bucket; empty: the account that starts it
    seed: Count = 0
    epochs: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    steps: Count = 0
    batch_size: Positive = 64  # samples per optimizer step over all ranks: the same at every world size
    accumulation: Positive = 1  # micro-batches per optimizer step
    log_every_steps: Positive = 10
    evaluate_every_steps: Count = 0  # 0: once, after the last step

    @model_validator(mode="after")
    def one_length(self) -> Self:
        if (self.epochs > 0) == (self.steps > 0):
            raise ValueError(f"set one of epochs (now {self.epochs}) and steps (now {self.steps})")
        return self


class Model(Section):
    """A name of models.registry, AutoModelFor... of transformers, or FILE.py:NAME, and its options."""

    name: str
    options: dict[str, Any] = {}  # of AutoModelFor...: keys of config.json to be changed
    weights: Place = ""  # a local folder of weights to begin with
    config: Place = ""  # AutoModelFor... only: a config.json or its folder, where there are no weights

    @field_validator("config")
    @classmethod
    def folder_of(cls, config: str) -> str:
        """A config.json and the folder that it is in are the same."""
        path = Path(config)
        return str(path.parent) if path.name == "config.json" else config


class Data(Section):
    """Where the samples are and how they are read: a prepared folder, or a data set of one's own by name."""

    path: Place = ""  # a folder or a file; s3:// or oss://bucket/prefix of shards and records
    kind: Literal["auto", "images", "shards", "tokens", "text"] = "auto"
    name: str = ""  # FILE.py:NAME or package.module:NAME of an own data set, in place of `path`
    options: dict[str, Any] = {}  # of `name`
    collate: str = ""  # FILE.py:NAME of what makes a batch of samples; empty: torch's default_collate
    columns: tuple[str, ...] = Field(default=(), strict=False)  # of a table or records; none: all
    held_out: Fraction = 0.1  # of data without splits of their own, for "val"
    split_seed: Count = 0  # which of them; another run.seed holds out the same
    image_size: Count = 0  # pixels of a side after augmentation; 0: as stored
    decoder: Literal["pillow", "dali"] = "pillow"  # of shards; dali: NVIDIA's, on the GPU where there is one
    augmentation: Literal["none", "shift", "shift_flip", "resized_crop"] = "none"
    sequence_length: Positive = 128  # tokens of a sample, for kinds "tokens" and "text"
    workers: Count | None = None  # reader processes per rank; unset: see loader.reader_processes
    prefetch: Positive = 2  # batches read ahead, per worker and on the device
    corrupt_limit: Count = 10  # corrupt samples skipped by a rank before it stops
    endpoint: str = ""  # of a bucket, where the cloud's own is not meant
    retry_s: Seconds = 180.0  # how long a read from a bucket is tried again

    @model_validator(mode="after")
    def one_source(self) -> Self:
        if bool(self.path) == bool(self.name):
            raise ValueError(f"set one of path (now {self.path!r}) and name (now {self.name!r})")
        of_other = ("columns", "kind", "image_size", "decoder", "augmentation") if self.name else ("options",)
        _refuse(self, of_other, f"is for data.{'path' if self.name else 'name'}")
        return self


class Loss(Section):
    """An own loss; without one, cross-entropy, or the `loss` that a model gives for a batch of columns."""

    name: str = ""
    options: dict[str, Any] = {}
    mean_over: MeanOver = "targets"  # which weigh alike; those of -100 do not count. Or samples, FILE.py:NAME

    @model_validator(mode="after")
    def options_of_one(self) -> Self:
        if not self.name:
            _refuse(self, ("options",), "is for a function of your own; name it by `name`")
        return self


class Metric(Section):
    """Own metrics on the held-out data, of which the first counts; without, the one that suits the data."""

    name: str = ""
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def options_of_one(self) -> Self:
        if not self.name:
            _refuse(self, ("options",), "is for a function of your own; name it by `name`")
        return self


class Optimizer(Section):
    """How gradients become updates."""

    name: OptimizerName = "adamw"
    options: dict[str, Any] = {}  # of an own optimizer
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    momentum: Fraction = 0.9  # sgd only
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), strict=False)  # adamw only; TOML has lists only
    clip_norm: Annotated[float, Field(ge=0)] = 0.0  # 0: no clipping

    @model_validator(mode="after")
    def options_of_one(self) -> Self:
        if ":" in self.name:
            _refuse(self, ("momentum", "betas"), f"is not handed to {self.name}; set it in optimizer.options")
            if "weight_decay" in self.options:  # a group's own value would win over it
                raise ValueError(
                    f"options.weight_decay = {self.options['weight_decay']!r} is for no parameter, as all "
                    f"are handed to {self.name} with a decay; set optimizer.weight_decay"
                )
        else:
            _refuse(self, ("options",), f"is for an optimizer of your own, not for {self.name}")
        return self


class Schedule(Section):
    """The learning rate over the steps: linear warm-up, then the named shape."""

    name: Literal["constant", "cosine", "linear", "step"] = "cosine"
    warmup_steps: Count = 0
    final_fraction: Fraction = 0.0  # of the learning rate, after the last step of cosine and linear
    step_every: Positive = 1000  # "step": steps between two decays
    step_factor: Fraction = 0.1


class Average(Section):
    """Weight averaging: the averaged model is the one that is evaluated and reported."""

    name: Literal["none", "ema", "swa"] = "none"
    decay: Fraction = 0.999  # ema
    start_step: Count = 0  # swa
    batch_norm_batches: Count = 50  # training batches that set the batch-norm statistics; 0: the model's


class Precision(Section):
    """Number formats, memory savings and the compiler."""

    dtype: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    channels_last: bool = False
    cudnn_benchmark: bool = (
        False  # cuDNN tries its algorithms at each new shape: faster, never the same twice
    )
    activation_checkpointing: bool = False


class Parallel(Section):
    """How the model is spread over the processes."""

    strategy: Literal["ddp", "fsdp", "tensor", "pipeline"] = "ddp"
    tensor: Positive = 1  # ranks that share each layer
    pipeline: Positive = 1  # ranks that share the depth of the model
    static_graph: bool | None = (
        None  # ddp: whether all steps use the same parameters; unset: see replicas.graph_is_static
    )
    powersgd_rank: Count = 0  # ddp: rank of the gradient compression; 0: off
    sync_batch_norm: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=1e6)] = 600.0  # of a collective; the watchdog is sooner

    @model_validator(mode="after")
    def one_strategy(self) -> Self:
        if self.tensor > 1 and self.pipeline > 1:
            raise ValueError(
                f"tensor = {self.tensor} and pipeline = {self.pipeline} do not go together; strategy = "
                "'tensor' or 'pipeline' alone fits, and shards over the remaining ranks as fsdp does"
            )
        for name in ("tensor", "pipeline"):
            if getattr(self, name) > 1 and self.strategy != name:
                raise ValueError(
                    f"{name} = {getattr(self, name)} needs strategy = {name!r}, not {self.strategy!r}"
                )
        if self.powersgd_rank and self.strategy != "ddp":
            raise ValueError(f"powersgd_rank compresses the gradients of ddp, not of {self.strategy}")
        return self


class Checkpoint(Section):
    """When a checkpoint is taken, where it goes and which ones stay."""

    uri: str = ""  # s3://bucket/prefix or oss://bucket/prefix; empty: local only
    endpoint: str = ""  # of the object store; empty: AWS_ENDPOINT_URL, or what the instance's cloud has
    every_steps: Count = 500
    every_s: Seconds = 1800.0
    keep: Positive = 3
    tries: Positive = 6  # in a row from one checkpoint, before the run is said to have failed for good
    resume: bool = True
    allow: tuple[str, ...] = Field(
        default=(), strict=False
    )  # keys in which a checkpoint may be of another run
    branch_uri: str = ""  # where the run of run.branch_of has its checkpoints, if not in its place by default


class Interrupt(Section):
    """How often notices are looked for and the ranks agree, and how long the last save may take."""

    rebalance: bool = False  # stop at a recommendation, too: it ends nothing, and most never come to a notice
    poll_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    agree_every_s: Seconds = 0.25  # 0: at every step
    save_s: Positive = 90  # what the last save may take, of the two minutes that a spot notice gives on AWS


class Metrics(Section):
    """Where measurements go, beside metrics.jsonl in the run directory."""

    tensorboard: bool = False
    prometheus_file: str = ""  # for the node exporter's textfile collector; empty: off
    wandb: str = ""  # project of Weights & Biases, offline, below the run directory; needs the package
    mlflow: str = ""  # tracking store of MLflow, such as sqlite:///mlflow.db; needs the package
    progress: bool = True
    profile_steps: tuple[int, ...] = Field(default=(), strict=False)  # first and last step of a trace


class Config(Section):
    """Everything one run needs; written beside its results and into every checkpoint."""

    run: RunSection
    model: Model
    data: Data
    loss: Loss = Loss()
    metric: Metric = Metric()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    average: Average = Average()
    precision: Precision = Precision()
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint = Checkpoint()
    interrupt: Interrupt = Interrupt()
    metrics: Metrics = Metrics()

    @model_validator(mode="after")
    def together(self) -> Self:
        strategy = self.parallel.strategy
        if strategy != "ddp" and self.precision.dtype == "fp16":
            raise ValueError(f"precision.dtype = 'fp16' scales the loss, which {strategy} cannot; use bf16")
        if strategy != "ddp" and self.precision.channels_last:
            raise ValueError(f"precision.channels_last = true needs ddp: {strategy} takes rows of weights")
        if strategy != "ddp" and self.average.name != "none":
            raise ValueError(f"average.name = {self.average.name!r} needs a whole model: ddp, not {strategy}")
        return self


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of `path` with `--section.key value` overrides laid over it; raises ConfigError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    for keys, value in parse_overrides(overrides):
        _put(table, keys, value)
    return from_table(table, source=str(path))


def may_leave_out(settings: Config) -> bool:
    """Whether DistributedDataParallel may look for parameters that a step leaves out.

    Unless it is said, of what is not of this trainer; of the models of transformers their classes know more.
    """
    if settings.parallel.strategy != "ddp" or settings.parallel.static_graph is not None:
        return settings.parallel.static_graph is False
    name = settings.model.name
    return ":" in name or name.startswith("AutoModel") or bool(settings.loss.name)


def names_of_code(settings: Config) -> tuple[str, ...]:
    """All keys that may name code of a user; what has a colon does."""
    named = (settings.model.name, settings.data.name, settings.data.collate, settings.loss.name)
    return (*named, settings.loss.mean_over, settings.metric.name, settings.optimizer.name)


def branched(settings: Config, name: str) -> Config:
    """The configuration of a new run `name`, beside the one it takes its first weights from.

    Raises ConfigError when the name is none, or is the run's own.
    """
    directory = Path(settings.run.directory)
    if not name or "/" in name or name in (".", "..", directory.name):
        raise ConfigError(f"--branch = {name!r}: must be the name of another run than {directory.name!r}")
    table = settings.model_dump(mode="json")
    table["run"] |= {"directory": str(directory.parent / name), "branch_of": str(directory)}
    if (uri := settings.checkpoint.uri) and uri != LOCAL_ONLY:
        table["checkpoint"] |= {"uri": _beside(uri, name), "branch_uri": uri}
    return from_table(table, source="--branch")


def _beside(uri: str, name: str) -> str:
    """The place `name` beside `uri` in its bucket; within it where the run has the whole bucket."""
    scheme, _, place = uri.rstrip("/").partition("://")
    bucket, _, prefix = place.partition("/")
    return f"{scheme}://" + "/".join(filter(None, (bucket, prefix.rpartition("/")[0], name)))


def from_table(table: dict[str, Any], source: str) -> Config:
    """Checks a nested table; raises ConfigError with one line per wrong key."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        lines = [_explain(item["loc"], item["type"], item["msg"], item["input"]) for item in error.errors()]
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from error


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[list[str], Any]]:
    """Reads `--section.key value` and `--section.key=value`; values as TOML, else as plain text."""
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or "." not in flag:
            raise ConfigError(f"{flag}: is not an override; write --section.key value, e.g. --run.seed 1")
        name, equals, text = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"{flag}: needs a value; write {flag} VALUE")
            text = rest.pop(0)
        yield name.split("."), _literal(text)


def _literal(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word: a path, a name


def _put(table: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--{'.'.join(keys)}: {key} is a value, not a section")
    table[keys[-1]] = value


def _explain(location: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    key = ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_nearest(location)}"
    if kind == "missing":
        return f"{key}: is missing"
    if isinstance(value, dict):
        return f"{key}: {message.removeprefix('Value error, ')}"
    return f"{key} = {value!r}: {message[0].lower()}{message[1:]}"


def _nearest(location: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in location[:-1]:
        section = cast("type[BaseModel]", section.model_fields[str(part)].annotation)
    return suggestion(str(location[-1]), section.model_fields)
