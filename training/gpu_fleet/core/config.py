"""The configuration: a TOML file and `--section.key value` overrides. One check reports all errors."""

import re
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

from gpu_fleet.core.errors import ConfigError, suggestion

LOCAL_ONLY = "none"  # value of checkpoint.uri for an instance of a fleet that must upload nothing
BUILT_IN_OPTIMIZERS = ("adamw", "sgd")
MEANS = ("targets", "samples")
# pydantic's names of types -> those of a configuration file
WORDS = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "dictionary": "a table",
    **dict.fromkeys(("array", "list", "tuple"), "a list"),
}


def _a_path(path: str) -> str:
    if path.startswith("~"):  # a run may be sent to an instance with another home
        raise ValueError("only a shell knows what ~ is; write the whole path")
    return path


def _named(known: Sequence[str], own: str) -> AfterValidator:
    def checked(name: str) -> str:
        if name not in known and ":" not in name:
            raise ValueError(f"must be {' or '.join(map(repr, known))}, or FILE.py:NAME of {own}")
        return name

    return AfterValidator(checked)


Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Place = Annotated[str, AfterValidator(_a_path)]
OptimizerName = Annotated[str, _named(BUILT_IN_OPTIMIZERS, "your own")]
MeanOver = Annotated[str, _named(MEANS, "a function that counts them")]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Section of the configuration: frozen, no unknown keys, no silent conversions ("1" is not 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raise ValueError for values that do not go together."""

    def _refuse(self, keys: Iterable[str], why: str) -> None:
        """Raise ValueError for a key that was set, but that nothing would read."""
        for key in keys:
            if (value := getattr(self, key)) != type(self).model_fields[key].default:
                raise ValueError(f"{key} = {value!r} {why}")


class RunSection(Section):
    """Length of a run, its batch size, and its directory. Exactly one of `epochs` and `steps` is set."""

    directory: Annotated[str, Field(min_length=1), AfterValidator(_a_path)] = "runs/default"
    branch_of: str = ""  # with --branch: run.directory of the run whose newest weights this one begins with
    owner: str = ""  # owner of the run, a part of its URI in the bucket; empty: the account that starts it
    seed: Count = 0
    epochs: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    steps: Count = 0
    batch_size: Positive = 64  # samples per optimizer step over all ranks: the same at every world size
    accumulation: Positive = 1  # micro-batches per optimizer step
    log_every_steps: Positive = 10
    evaluate_every_steps: Count = 0  # 0: once, after the last step

    def check(self) -> None:
        if (self.epochs > 0) == (self.steps > 0):
            raise ValueError(f"set one of epochs (now {self.epochs}) and steps (now {self.steps})")


class Model(Section):
    """A name of models.registry, AutoModelFor... of transformers, or FILE.py:NAME, and its options."""

    name: str
    options: dict[str, Any] = {}  # for AutoModelFor...: keys of config.json to change
    weights: Place = ""  # a local folder of weights to begin with
    config: Place = ""  # AutoModelFor... only: a config.json or its folder, without weights

    @field_validator("config")
    @classmethod
    def folder_of(cls, config: str) -> str:
        path = Path(config)
        return str(path.parent) if path.name == "config.json" else config


class Data(Section):
    """Source and reading of the samples: a prepared folder, or a user's own data set by name."""

    path: Place = ""  # a folder or a file; s3:// or oss://bucket/prefix for shards and records
    kind: Literal["auto", "images", "shards", "tokens", "text"] = "auto"
    name: str = ""  # FILE.py:NAME or package.module:NAME of an own data set, in place of `path`
    options: dict[str, Any] = {}  # arguments of `name`
    collate: str = ""  # FILE.py:NAME of a function from samples to a batch; empty: torch's default_collate
    columns: tuple[str, ...] = Field(default=(), strict=False)  # of a table or records; none: all
    held_out: Fraction = 0.1  # share for "val" of data without splits
    split_seed: Count = 0  # decides which samples are held out; run.seed does not
    image_size: Count = 0  # pixels of a side after augmentation; 0: the stored size
    augmentation: Literal["none", "shift", "shift_flip", "resized_crop"] = "none"
    sequence_length: Positive = 128  # tokens of a sample, for kinds "tokens" and "text"
    # reader processes per rank, all of which start at once; unset: see loader.reader_processes
    workers: Annotated[int, Field(ge=0, le=256)] | None = None
    # batches read ahead, per worker and on the device; a million fill the memory before the first step
    prefetch: Annotated[int, Field(ge=1, le=1000)] = 2
    corrupt_limit: Count = 10  # distinct corrupt samples that all ranks skip before the run ends
    endpoint: str = ""  # endpoint of a bucket, if not the cloud's own
    retry_s: Seconds = 180.0  # longest time for retries of a read from a bucket

    def check(self) -> None:
        if bool(self.path) == bool(self.name):
            raise ValueError(f"set one of path (now {self.path!r}) and name (now {self.name!r})")
        of_path = ("columns", "kind", "image_size", "augmentation", "held_out", "split_seed")
        of_other = of_path if self.name else ("options",)
        self._refuse(of_other, f"is for data.{'path' if self.name else 'name'}")


class OwnFunction(Section):
    """A user's own function by name, with its options."""

    name: str = ""
    options: dict[str, Any] = {}

    def check(self) -> None:
        if not self.name:
            self._refuse(("options",), "is for a function of your own; name it by `name`")


class Loss(OwnFunction):
    """A user's own loss; without one, cross-entropy, or the `loss` of a model for a batch of columns."""

    mean_over: MeanOver = "targets"  # each target counts as one, -100 as none; or samples, or FILE.py:NAME


class Metric(OwnFunction):
    """A user's own metrics on held-out data; the first is the score. Without them the data decide."""


class Optimizer(Section):
    """Optimizer: the rule from gradients to updates."""

    name: OptimizerName = "adamw"
    options: dict[str, Any] = {}  # for a user's own optimizer
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    momentum: Beta = 0.9  # sgd only
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), strict=False)  # adamw only; TOML has lists only
    clip_norm: Annotated[float, Field(ge=0)] = 0.0  # 0: no clipping

    def check(self) -> None:
        if ":" in self.name:
            self._refuse(("momentum", "betas"), f"is not handed to {self.name}; set it in optimizer.options")
            if "weight_decay" in self.options:  # each group has its own value, which overrides it
                raise ValueError(
                    f"options.weight_decay = {self.options['weight_decay']!r} has no effect, as "
                    f"{self.name} gets a decay for each parameter; set optimizer.weight_decay"
                )
        else:
            self._refuse(("options",), f"is for an optimizer of your own, not for {self.name}")
            self._refuse(("momentum" if self.name == "adamw" else "betas",), f"is not for {self.name}")


class Schedule(Section):
    """Learning rate over the steps: linear warm-up, then the named shape."""

    name: Literal["constant", "cosine", "linear", "step"] = "cosine"
    warmup_steps: Count = 0
    final_fraction: Fraction = 0.0  # part of the learning rate after the last step of cosine and linear
    step_every: Positive = 1000  # "step": steps between two decays
    step_factor: Annotated[float, Field(gt=0, le=1)] = 0.1

    def check(self) -> None:
        if self.name != "step":
            self._refuse(("step_every", "step_factor"), f"is for name = 'step', not for {self.name!r}")
        if self.name in ("constant", "step"):
            self._refuse(("final_fraction",), f"is for 'cosine' and 'linear', not for {self.name!r}")


class Average(Section):
    """Weight averaging: the averaged model is evaluated and exported."""

    name: Literal["none", "ema", "swa"] = "none"
    decay: Beta = 0.999  # ema
    start_step: Count = 0  # swa
    batch_norm_batches: Count = 50  # training batches for its batch-norm statistics; 0: the model's own

    def check(self) -> None:
        if self.name != "ema":
            self._refuse(("decay",), f"is for name = 'ema', not for {self.name!r}")
        if self.name != "swa":
            self._refuse(("start_step",), f"is for name = 'swa', not for {self.name!r}")
        if self.name == "none":
            self._refuse(("batch_norm_batches",), "is for an averaged model; set name to 'ema' or 'swa'")


class Precision(Section):
    """Number formats, memory savings and the compiler."""

    dtype: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    channels_last: bool = False
    # cuDNN tries its algorithms at each new shape: faster, but not reproducible
    cudnn_benchmark: bool = False
    activation_checkpointing: bool = False


class Parallel(Section):
    """Distribution of the model over the processes."""

    strategy: Literal["ddp", "fsdp", "tensor", "pipeline"] = "ddp"
    tensor: Positive = 1  # ranks that share each layer
    pipeline: Positive = 1  # ranks that share the depth of the model
    static_graph: bool | None = None  # ddp: all steps use the same parameters; unset: see graph_is_static
    powersgd_rank: Count = 0  # ddp: rank of the gradient compression; 0: off
    sync_batch_norm: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=1e6)] = 600.0  # for a collective; the watchdog ends sooner

    def check(self) -> None:
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
        if self.strategy != "ddp":
            self._refuse(("static_graph",), f"is for ddp, not for {self.strategy}")


class Checkpoint(Section):
    """Schedule, location and retention of checkpoints."""

    uri: str = ""  # s3://bucket/prefix or oss://bucket/prefix; empty: the stack's bucket, else local only
    endpoint: str = ""  # of the object store; empty: AWS_ENDPOINT_URL, or that of the instance's cloud
    every_steps: Count = 500
    every_s: Seconds = 1800.0
    keep: Positive = 3
    tries: Positive = 6  # tries in a row from one checkpoint, after which the run fails for good
    resume: bool = True
    allow: tuple[str, ...] = Field(
        default=(), strict=False
    )  # keys that may differ between checkpoint and run
    branch_uri: str = ""  # URI of the checkpoints of the run of run.branch_of, if not its default URI


class Interrupt(Section):
    """Intervals of polling for notices and of the ranks' agreement, and the time for the last save."""

    rebalance: bool = False  # also stop at a rebalance recommendation; most are not followed by a notice
    poll_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    agree_every_s: Seconds = 0.25  # 0: at every step
    save_s: Positive = 90  # time for the last save, within the two minutes of a spot notice on AWS


class Metrics(Section):
    """Destinations of measurements, beside metrics.jsonl in the run directory."""

    tensorboard: bool = False
    prometheus_file: str = ""  # for the node exporter's textfile collector; empty: off
    wandb: str = ""  # project of Weights & Biases, offline, below the run directory; needs the package
    mlflow: str = ""  # tracking store of MLflow, such as sqlite:///mlflow.db; needs the package
    progress: bool = True
    profile_steps: tuple[int, ...] = Field(default=(), strict=False)  # first and last step of a trace


class Config(Section):
    """All settings of one run; written beside its results and into every checkpoint."""

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

    def check(self) -> None:
        strategy = self.parallel.strategy
        if self.checkpoint.branch_uri and not self.run.branch_of:
            raise ValueError(
                f"checkpoint.branch_uri = {self.checkpoint.branch_uri!r} is for a branch; set run.branch_of"
            )
        if strategy != "ddp" and self.precision.dtype == "fp16":
            raise ValueError(f"precision.dtype = 'fp16' scales the loss, which {strategy} cannot; use bf16")
        if strategy != "ddp" and self.precision.channels_last:
            raise ValueError(f"precision.channels_last = true needs ddp: {strategy} takes rows of weights")
        if strategy != "ddp" and self.average.name != "none":
            raise ValueError(f"average.name = {self.average.name!r} needs a whole model: ddp, not {strategy}")


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the configuration of `path`, and apply `--section.key value` overrides; raises ConfigError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8, at byte {error.start}; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    for keys, value in parse_overrides(overrides):
        _put(table, keys, value)
    return from_table(table, source=str(path))


def may_leave_out(settings: Config) -> bool:
    """Return whether DistributedDataParallel may have to search for parameters that a step leaves out."""
    if settings.parallel.strategy != "ddp" or settings.parallel.static_graph is not None:
        return settings.parallel.static_graph is False
    name = settings.model.name
    return ":" in name or name.startswith("AutoModel") or bool(settings.loss.name)


def names_of_code(settings: Config) -> tuple[str, ...]:
    """Return the values of all keys that may name a user's code; those with a colon do."""
    named = (settings.model.name, settings.data.name, settings.data.collate, settings.loss.name)
    return (*named, settings.loss.mean_over, settings.metric.name, settings.optimizer.name)


def branched(settings: Config, name: str) -> Config:
    """Return the configuration of a new run `name`, beside the run that gives its first weights."""
    directory = Path(settings.run.directory)
    if not name or "/" in name or name in (".", "..", directory.name):
        raise ConfigError(f"--branch = {name!r}: must be the name of another run than {directory.name!r}")
    table = settings.model_dump(mode="json")
    table["run"] |= {"directory": str(directory.parent / name), "branch_of": str(directory)}
    if (uri := settings.checkpoint.uri) and uri != LOCAL_ONLY:
        table["checkpoint"] |= {"uri": _beside(uri, name), "branch_uri": uri}
    return from_table(table, source="--branch")


def _beside(uri: str, name: str) -> str:
    scheme, _, place = uri.rstrip("/").partition("://")
    bucket, _, prefix = place.partition("/")
    return f"{scheme}://" + "/".join(filter(None, (bucket, prefix.rpartition("/")[0], name)))


def from_table(table: dict[str, Any], source: str) -> Config:
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        lines = [_explain(item["loc"], item["type"], item["msg"], item["input"]) for item in error.errors()]
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from error


def parse_overrides(arguments: Sequence[str]) -> Iterator[tuple[list[str], Any]]:
    """Parse `--section.key value` and `--section.key=value`; a value is TOML, else plain text."""
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
    if kind == "model_type":
        return f"{key} = {value!r}: is a section; write [{key}] and its keys below"
    if isinstance(value, dict):
        return f"{key}: {message.removeprefix('Value error, ')}".removeprefix(": ")
    return f"{key} = {value!r}: {allowed(message)}"


def allowed(message: str) -> str:
    """Return a message of pydantic in the words of a configuration file: it begins with "must"."""
    text = re.sub(r"^Value error, |, unable to parse .*| after validation", "", message)
    text = re.sub(r"^\w+ should ", "must ", text)
    for theirs, ours in WORDS.items():
        text = text.replace(f"a valid {theirs}", ours)
    return f"{text[0].lower()}{text[1:].replace(' valid ', ' ')}"


def _nearest(location: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in location[:-1]:
        section = cast("type[BaseModel]", section.model_fields[str(part)].annotation)
    return suggestion(str(location[-1]), section.model_fields)
