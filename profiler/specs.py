"""What a model and a device are, as numbers: values with a source, and what follows from them by counting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

DType = Literal["bf16", "fp8"]

DTYPE_BYTES: dict[DType, int] = {"bf16": 2, "fp8": 1}
"""Bytes of one element. bf16 stands for any 16-bit float: fp16 has the same size and the same peak."""


def _require_positive(spec: DeviceSpec | ModelSpec, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(spec, name)
        if not value > 0:
            raise ValueError(f"{type(spec).__name__} {spec.name!r}: {name} is {value}; it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One GPU: rates in base units (FLOP/s dense, bytes/s), sizes in bytes, times in seconds.

    fp8_flops: None where the device has no fp8 tensor cores; asking for it raises, nothing is derived.
    link_bytes_per_s, link_latency_s: to the other GPUs of its server, one direction, and per operation.
    bandwidth_knee_sms: N_d of the paper: how many SMs draw all of the DRAM bandwidth (section 3.2).
    sm_granularity: the step in which SM shares are granted.
    contention_ceiling: by how much a saturating co-runner slows DRAM-bound work (0.2: 20 %).
    tiled: whether a product runs in thread blocks of whole tiles, wave by wave. Libraries spread a CPU's rows evenly.
    in_step: whether all SMs of a launch wait for the slowest after each kernel, as the threads of a CPU's team do. Else
        blocks go to the SMs that are free.
    sources: (field, where its number comes from); "assumed" where nobody publishes it.
    """

    name: str
    sms: int
    bf16_flops: float
    fp8_flops: float | None
    dram_bytes_per_s: float
    memory_bytes: int
    l2_bytes: int
    link_bytes_per_s: float
    link_latency_s: float
    bandwidth_knee_sms: int
    sm_granularity: int
    contention_ceiling: float
    tiled: bool = True
    in_step: bool = False
    sources: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        _require_positive(
            self,
            (
                "sms",
                "bf16_flops",
                "dram_bytes_per_s",
                "memory_bytes",
                "l2_bytes",
                "link_bytes_per_s",
                "bandwidth_knee_sms",
                "sm_granularity",
            ),
        )
        if self.fp8_flops is not None:
            _require_positive(self, ("fp8_flops",))
        if self.bandwidth_knee_sms > self.sms:
            raise ValueError(
                f"DeviceSpec {self.name!r}: bandwidth_knee_sms is {self.bandwidth_knee_sms}, above its {self.sms} SMs"
            )
        for name in ("link_latency_s", "contention_ceiling"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"DeviceSpec {self.name!r}: {name} is {getattr(self, name)}; it must be 0 or more")

    def peak_flops(self, dtype: DType) -> float:
        """Dense FLOP/s of the tensor cores. Raises ValueError where the device has none for this dtype."""
        peak = {"bf16": self.bf16_flops, "fp8": self.fp8_flops}[dtype]
        if peak is None:
            raise ValueError(
                f"device {self.name} has no {dtype} tensor cores; take a bf16 model, or a device with a {dtype} peak"
            )
        return peak


def part(device: DeviceSpec, sms: int) -> DeviceSpec:
    """``sms`` SMs of ``device`` as a device of its own: a slice of a GPU, or some cores of a CPU.

    FLOP/s in proportion, and the DRAM bandwidth that so many SMs draw, D_peak * min(1, n / N_d). Name, memory, L2, link
    and all else are those of the whole device. Raises ValueError where it has not so many SMs.
    """
    if not 0 < sms <= device.sms:
        raise ValueError(f"a part of {sms} SMs; {device.name} has 1 to {device.sms} to give")
    if sms == device.sms:
        return device
    share = sms / device.sms
    return replace(
        device,
        sms=sms,
        bf16_flops=device.bf16_flops * share,
        fp8_flops=None if device.fp8_flops is None else device.fp8_flops * share,
        dram_bytes_per_s=device.dram_bytes_per_s * min(1.0, sms / device.bandwidth_knee_sms),
        bandwidth_knee_sms=min(sms, device.bandwidth_knee_sms),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer with multi-head or grouped-query attention, dense or mixture of experts.

    intermediate: width of the MLP of dense layers. gated_mlp: gate, up and down; without, up and down.
    dtype: of the linear layers' weights and of what they multiply; embeddings, norms, router and LM head are
        bf16 in every checkpoint.
    experts, experts_per_token, moe_intermediate: 0 for a dense model. shared_intermediate: width of the experts
        that every token visits. dense_layers: how many layers of a MoE model have a dense MLP.
    learned_positions: positions in an embedding table (GPT-2, OPT), 0 with rotary ones.
    Biases are left out everywhere (below 0.1 % of the parameters).
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    tied_embeddings: bool = False
    qk_norm: bool = False
    gated_mlp: bool = True
    learned_positions: int = 0
    dtype: DType = "bf16"
    kv_dtype: DType = "bf16"
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_intermediate: int = 0
    dense_layers: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        _require_positive(
            self, ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "max_context")
        )
        self._check_attention()
        self._check_experts()

    def _check_attention(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"ModelSpec {self.name!r}: {self.heads} heads are no multiple of its {self.kv_heads} kv_heads"
            )
        for name in ("dtype", "kv_dtype"):
            if getattr(self, name) not in get_args(DType):
                raise ValueError(f"ModelSpec {self.name!r}: {name} is {getattr(self, name)!r}; known: bf16, fp8")

    def _check_experts(self) -> None:
        if not self.experts:
            if self.experts_per_token or self.moe_intermediate or self.shared_intermediate or self.dense_layers:
                raise ValueError(f"ModelSpec {self.name!r}: experts is 0 but other MoE fields are set")
            return
        _require_positive(self, ("experts_per_token", "moe_intermediate"))
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"ModelSpec {self.name!r}: experts_per_token is {self.experts_per_token}, above its "
                f"{self.experts} experts"
            )
        if not 0 <= self.dense_layers < self.layers:
            raise ValueError(
                f"ModelSpec {self.name!r}: dense_layers is {self.dense_layers}; it must be 0 to {self.layers - 1}"
            )

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def mlp_matrices(self) -> int:
        """Matrices of one MLP: gate, up and down, or up and down."""
        return 3 if self.gated_mlp else 2

    @property
    def _linear_parameters(self) -> int:
        """Parameters held in ``dtype``: projections, MLPs and experts."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        dense = self.mlp_matrices * self.hidden * self.intermediate
        expert_width = self.experts * self.moe_intermediate + self.shared_intermediate
        sparse = self.mlp_matrices * self.hidden * expert_width
        return self.layers * attention + (self.layers - self.moe_layers) * dense + self.moe_layers * sparse

    @property
    def _other_parameters(self) -> int:
        """Parameters held in bf16: embeddings, LM head, norms and routers."""
        tables = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        norms = self.layers * 2 * (self.hidden + self.head_dim * self.qk_norm) + self.hidden
        routers = self.moe_layers * self.hidden * self.experts
        return tables + norms + routers + self.learned_positions * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters, biases left out."""
        return self._linear_parameters + self._other_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token visits: all of a dense model, its own experts of a MoE model."""
        idle_experts = self.experts - self.experts_per_token
        per_expert = self.mlp_matrices * self.hidden * self.moe_intermediate
        return self.parameters - self.moe_layers * idle_experts * per_expert

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights. Block scales of fp8 checkpoints (0.02 %) are left out."""
        return self._linear_parameters * DTYPE_BYTES[self.dtype] + self._other_parameters * 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers and heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[self.kv_dtype]
