"""A run's settings: everything that it takes to repeat it, as a file and as a value.

This is a border: what a user typed or stored is checked here, once, and every complaint names the field.
Beyond it the code holds plain frozen values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from policies.slo import SLO
from profiler.kernelsum import Sharing
from sim.between import NOTHING_BETWEEN, BetweenSteps
from sim.metrics import Window

Seconds = Annotated[float, Field(gt=0, le=1e12)]
Overhead = Annotated[float, Field(ge=0, le=3600)]
Count = Annotated[int, Field(ge=1, lt=1 << 40)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Requests = Annotated[int, Field(ge=1, le=10_000_000)]
Instances = Annotated[int, Field(ge=1, le=10_000)]
Share = Annotated[float, Field(gt=0, le=1)]


class Settings(BaseModel):
    """Frozen and strict: unknown fields, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SloSettings(Settings):
    """The limits of :class:`policies.slo.SLO`, in seconds."""

    ttft_s: Seconds | None = None
    ttft_per_token_s: Seconds | None = None
    ttft_floor_s: Annotated[float, Field(ge=0)] = 0.0
    tpot_s: Seconds | None = None

    @model_validator(mode="after")
    def _floor_of_a_limit(self) -> Self:
        if self.ttft_floor_s and self.ttft_s is None and self.ttft_per_token_s is None:
            raise ValueError(
                f"ttft_floor_s is {self.ttft_floor_s:g}, but there is no TTFT limit that it could be the floor of;"
                " give ttft_per_token_s (--slo-ttft-per-token) or ttft_s (--slo-ttft) too"
            )
        return self

    def value(self) -> SLO:
        return SLO(**self.model_dump())


class WindowSettings(Settings):
    """Seconds of arrivals cut at both ends before metrics are taken."""

    warmup_s: Annotated[float, Field(ge=0)] = 0.0
    drain_s: Annotated[float, Field(ge=0)] = 0.0

    def value(self) -> Window:
        return Window(**self.model_dump())


class PolicySettings(Settings):
    """A policy's name, or ``path.py:Class``, and those of its settings that differ from its defaults."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


def _ascending(points: list[Point]) -> list[Point]:
    """Between points in another order there would be other values than anyone meant."""
    for (before, _), (after, _) in pairwise(points):
        if after <= before:
            raise ValueError(f"{after} comes after {before}; give the points in ascending order, none twice")
    return points


Point = TypeVar("Point", bound=tuple[int, Any])
Factor = Annotated[float, Field(ge=1e-6, le=1e6)]
Points = Annotated[list[Annotated[tuple[Count, Factor], Field(strict=False)]], AfterValidator(_ascending)]
OfRows = Annotated[Points, Field(min_length=1)]
Products = Annotated[list[Annotated[tuple[Count, OfRows], Field(strict=False)]], AfterValidator(_ascending)]


Loss = Annotated[float, Field(ge=0, le=1)]
Losses = Annotated[tuple[Loss, Loss], Field(strict=False)]


class PaceSettings(Settings):
    """Factors on the time of launches that prefill and of others: (SMs, factor), interpolated between.

    products: on matrix products, besides: (SMs, [(rows, factor), ...]), see profiler.composition.ProductFactors.
    losses: of launches of a kind to others on SMs of their own, see profiler.losses.Losses; others as fitted.
    """

    prefill: Points = Field(default_factory=list)
    decode: Points = Field(default_factory=list)
    products: Products = Field(default_factory=list)
    losses: dict[Literal["prefill", "decode"], Losses] = Field(default_factory=dict)


class LatencySettings(Settings):
    """Which latency model, and what differs from its own settings; None keeps those.

    model: ``fitted`` (built in), ``roofline``, or a file of ``bulletsim fit``; None: fitted where one is built in.
    model_sha256: of that file when the run was made; checked when it is repeated.
    gemm, attention, bandwidth: of the roofline alone.
    link_bytes_per_s: to the other GPUs of the server, one direction, in place of the device's own.
    repartition_s, handover_s, wake_s: of sim.between, in virtual time.
    pace: how many times as long as measured launches take on the device: one number, or by kind of launch and SMs, and
        products by their rows.
    """

    model: str | None = None
    model_sha256: str | None = None
    dtype: Literal["bf16", "fp8"] | None = None
    kv_dtype: Literal["bf16", "fp8"] | None = None
    gemm: Share | None = None
    attention: Share | None = None
    bandwidth: Share | None = None
    pass_overhead_s: Overhead | None = None
    launch_overhead_s: Overhead | None = None
    prefill_overhead_s: Overhead | None = None
    prefill_pass_overhead_s: Overhead | None = None
    prefill_sequence_overhead_s: Overhead | None = None
    repartition_s: Overhead | None = None
    handover_s: Overhead | None = None
    wake_s: Overhead | None = None
    pace: Factor | PaceSettings | None = None
    reserve_tokens: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    sharing: Sharing | None = None
    link_bytes_per_s: Annotated[float, Field(gt=0)] | None = None

    def between(self) -> BetweenSteps:
        """By what launches are late; the same nothing wherever none is set."""
        found = BetweenSteps(*(getattr(self, name) or 0.0 for name in BetweenSteps._fields))
        return found if any(found) else NOTHING_BETWEEN


def _named_policy(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


NOT_ESTIMATED = (*BetweenSteps._fields, "reserve_tokens")
"""Of LatencySettings, what no policy asks its estimator for: time between launches, and memory."""


class RunConfig(Settings):
    """One run.

    trace: a file, ``workload:NAME`` for a built-in workload, or the name of a public trace that was fetched.
    requests: how many of it; None takes all of a file and 1,000 of a workload. seed: of all that is drawn.
    policy: a name or ``path.py:Class``, alone or with settings.
    model, device: built-in names; a model may also be a config.json.
    tensor_parallel: devices an instance. instances: replicas, or with disaggregation x + y.
    slo: the limits that policies aim at and metrics are taken by. latency: what steps run by.
    arrivals: how requests arrive, in the words of ``bulletsim traces``; None keeps the trace's own times.
    rate: requests a second over all instances; with arrivals left out, recorded times are rescaled to it
        and a trace of lengths alone gets Poisson arrivals at it.
    slice: START:END in seconds of the trace's own times; only requests that arrive then are served, from 0 on.
    instance_sms: SMs (CPU cores) of each of its devices that an instance has, a slice or a core; None for all.
    shared_device: whether all instances are parts of one device, of ``instance_sms`` each, and so slow each other.
    kv_blocks: KV blocks an instance; None derives them from ``memory_fraction``, the share of device
        memory that weights and KV may take together.
    reuse_preempted: whether a pre-empted request takes over what its freed KV blocks still hold (sim.limits).
    prefix_cache: whether prompts that begin alike share KV, and later ones find it: needs a trace with block_hashes or
        session_id. What pre-empted requests gave back is then found too.
    estimator: the latency model that the policy plans with, where it is not the one that steps run by; of its settings
        those in NOT_ESTIMATED are refused. See ``planned``.
    oversized: what to do with a request that could never fit: stop before the run, or reject it.
    version, trace_sha256: what the run was made with; checked when it is repeated.
    """

    trace: Annotated[str, Field(min_length=1)]
    arrivals: str | None = None
    rate: Annotated[float, Field(gt=0)] | None = None
    requests: Requests | None = None
    slice: str | None = None
    policy: Annotated[PolicySettings, BeforeValidator(_named_policy)]
    model: str
    device: str
    tensor_parallel: Count = 1
    instances: Instances = 1
    instance_sms: Count | None = None
    shared_device: bool = False
    slo: SloSettings = SloSettings()
    seed: Seed = 0
    queue_limit: Count | None = None
    memory_fraction: Share = 0.9
    kv_blocks: Count | None = None
    block_tokens: Count = 16
    reuse_preempted: bool = False
    prefix_cache: bool = False
    until_s: Seconds | None = None
    oversized: Literal["error", "reject"] = "error"
    window: WindowSettings = WindowSettings()
    latency: LatencySettings = LatencySettings()
    estimator: LatencySettings | None = None
    version: str | None = None
    trace_sha256: str | None = None

    @model_validator(mode="after")
    def _estimator_of_launches(self) -> Self:
        for name in NOT_ESTIMATED if self.estimator else ():
            value = getattr(self.estimator, name)
            if value is not None:
                raise ValueError(
                    f"estimator.{name} is {value:g}, but a policy estimates launches, and {name} is of none;"
                    f" give latency.{name} (--latency {name}={value:g}) instead"
                )
        return self

    @model_validator(mode="after")
    def _parts_of_one_device(self) -> Self:
        if self.shared_device and self.instance_sms is None:
            raise ValueError(
                "shared_device is true and instance_sms is not set; give the SMs of each instance (--instance-sms)"
            )
        return self

    @property
    def planned(self) -> LatencySettings | None:
        """``estimator``, of the model that ``latency`` names where it names none."""
        if self.estimator is None or self.estimator.model is not None or self.latency.model is None:
            return self.estimator
        same = {"model": self.latency.model, "model_sha256": self.latency.model_sha256}
        return self.estimator.model_copy(update=same)

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * (1 if self.shared_device else self.instances)

    def digest(self) -> str:
        """SHA-256 over every setting and the version: equal settings, equal results."""
        stamped = self.model_copy(update={"version": self.version or package_version()})
        text = json.dumps(stamped.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def package_version() -> str:
    """The version of this package that is installed."""
    return version("bulletsim")


Checked = TypeVar("Checked", bound=BaseModel)


Place = tuple[int | str, ...]
"""Names of settings and positions in lists that lead to a value."""


def dotted(place: Place) -> str:
    """A place as settings in files are named."""
    return ".".join(map(str, place))


def checked(model: type[Checked], data: object, where: str, named: Callable[[Place], str] = dotted) -> Checked:
    """``data`` as a ``model``.

    Raises ValueError: one line naming ``where``, the field as ``named`` says, the value and the fault.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ValueError(one_line(error, where, model, named)) from None


def one_line(error: ValidationError, where: str, model: type[BaseModel], named: Callable[[Place], str] = dotted) -> str:
    """The first fault of a validation of ``model``, and in how many more places there are others."""
    place, fault, others = _first(error, model)
    field = named(place) if place else ""
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    more = f" (and {others} more)" if others else ""
    if fault["type"] == "extra_forbidden":
        known = ", ".join(map(str, _annotations(_group(model, place[:-1]))))
        return f"{where}: {field} is not a setting{more}; known: {known}"
    if fault["type"] == "missing":
        return f"{where}: {field} is missing{more}; give it a value"
    if fault["type"] == "value_error":
        return f"{where}: {field + ': ' if field else ''}{fault['ctx']['error']}{more}"
    if fault["type"] in ("model_type", "dict_type"):
        message = "settings are expected there, each a name and a value"
        if not field:
            given = "holds nothing" if fault["input"] is None else f"holds {shown(fault['input'])}"
            return f"{where} {given}: {message}"
    return f"{where}: {field} is {shown(fault['input'])}: {message}{more}"


def place_of(error: ValidationError, model: type[BaseModel]) -> Place:
    """Where the fault is that :func:`one_line` tells."""
    return _first(error, model)[0]


def _first(error: ValidationError, model: type[BaseModel]) -> tuple[Place, ErrorDetails, int]:
    """The fault to tell, its place, and how many other places have some.

    A value that may be of several kinds has faults as each of them; those furthest in are of the kind that was meant.
    """
    faults = error.errors(include_url=False)
    places = [_named(model, fault) for fault in faults]
    first = places[0]
    place = max((other for other in places if other[: len(first)] == first), key=len)
    others = {other for other in places if other != place[: len(other)]}
    return place, faults[places.index(place)], len(others)


def _named(model: type[BaseModel], fault: ErrorDetails) -> Place:
    """The place of a fault without what pydantic puts between: the kinds that a value may be of."""
    loc = fault["loc"]
    named: list[int | str] = []
    group, free = [model], False
    for depth, part in enumerate(loc, 1):
        annotation = next((fields[part] for one in group if part in (fields := _annotations(one))), None)
        if annotation is not None:
            group, free = list(_models(annotation)), _has_own_names(annotation)
        elif part == "[key]" or not (
            free or isinstance(part, int) or (fault["type"] == "extra_forbidden" and depth == len(loc))
        ):
            continue
        named.append(part)
    return tuple(named)


def _annotations(model: type[BaseModel]) -> dict[int | str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _has_own_names(annotation: object) -> bool:
    """Whether what stands there are names of the user's own."""
    return get_origin(annotation) is dict or any(map(_has_own_names, get_args(annotation)))


def _group(model: type[BaseModel], place: Place) -> type[BaseModel]:
    """The group of settings at ``place`` in ``model``."""
    group = model
    for part in place:
        if isinstance(part, str) and part in group.model_fields:
            group = next(_models(group.model_fields[part].annotation), group)
    return group


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def shown(value: object) -> str:
    """A value as a message quotes it: what is long is cut."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def load_config(path: Path) -> RunConfig:
    """The settings in a ``config.json``. Raises ValueError for a missing file, no JSON, or wrong settings."""
    return checked(RunConfig, read_json(path), str(path))


def read_json(path: Path) -> Any:
    """The document in ``path``. Raises ValueError naming the file, and the line where it is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a directory; a JSON file was expected") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not JSON of ours: it is nested too deeply") from None
