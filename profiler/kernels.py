"""The kernels of one launch, with their FLOPs, DRAM bytes and thread blocks, for one device of an instance.

This enumeration is the only place that knows what a transformer does; a latency model adds times up. Activations are
bf16 and cross DRAM between kernels; weights are read once a kernel; K and V of a sequence are read once an attention
kernel, repeated reads by its blocks come from L2, and so do partial sums of split products.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from profiler.latency import Source
from profiler.specs import DTYPE_BYTES, DeviceSpec, DType, ModelSpec
from profiler.tiles import plan_gemm
from profiler.work import Work

Kind = Literal["gemm", "attention", "memory", "link"]

Chunks = tuple[tuple[int, int], ...]
"""(new, cached) tokens of each sequence of one prefill attention launch."""

ATTENTION_ROWS: Final = 128
"""Query rows of one block of prefill attention (paper, table 2: one block per head and 128 rows)."""

ACTIVATION_BYTES: Final = DTYPE_BYTES["bf16"]

new: Final = tuple.__new__


class Kernel(NamedTuple):
    """One kernel as launched ``runs`` times; a fraction where only some layers have it.

    flops: useful ones. dram_bytes: read and written. dtype: of the tensor-core operands.
    blocks: thread blocks q, and ``block_flops`` what one issues, padding and masked parts included. None where the
        kernel sizes its grid to fill the SMs it runs on, so that no wave is lost.
    link_bytes: what one device sends to its neighbours.
    op: what was measured under this name (profiler.profile.SHAPES); ``size`` the dimension that grows with the batch
        (rows, tokens, context tokens, bytes), ``dims`` the others, ``chunks`` those of prefill attention.
    alphas: measured time over that of the formula, on each of the SM shares at which this op was measured
        (ascending; the whole device last), and the ``source`` that they rest on.
    """

    name: str
    kind: Kind
    flops: float = 0.0
    dram_bytes: float = 0.0
    dtype: DType = "bf16"
    blocks: int | None = None
    block_flops: float = 0.0
    link_bytes: float = 0.0
    runs: float = 1.0
    op: str = ""
    size: float = 0.0
    dims: tuple[int, ...] = ()
    chunks: Chunks = ()
    alphas: tuple[float, ...] = (1.0,)
    source: Source = "roofline"


class DecodeAttention(NamedTuple):
    """Decode attention of one layer is linear in the batch: per context token and per sequence."""

    flops_per_token: float
    bytes_per_token: float
    bytes_per_request: float


def gemm(
    name: str, rows: float, columns: int, depth: int, device_sms: int, dtype: DType = "bf16", groups: float = 1.0
) -> Kernel:
    """``groups`` products (rows x depth) x (depth x columns) with different weights, over ``rows`` rows altogether."""
    blocks, block_flops = plan_gemm(rows / groups, columns, depth, device_sms, groups)
    weights = groups * columns * depth * DTYPE_BYTES[dtype]
    activations = rows * (columns + depth) * ACTIVATION_BYTES
    return Kernel(
        name,
        "gemm",
        flops=2.0 * rows * columns * depth,
        dram_bytes=weights + activations,
        dtype=dtype,
        blocks=blocks,
        block_flops=block_flops,
        op="gemm",
        size=rows / groups,
        dims=(columns, depth),
    )


def prompt_totals(
    chunks: Chunks, heads: int, kv_heads: int, head_dim: int, kv_dtype: DType = "bf16"
) -> tuple[float, float, int, float]:
    """One layer's attention of a launch: (useful FLOPs, DRAM bytes, thread blocks, FLOPs that these issue).
    See :func:`prefill_attention`."""
    flops = moved = issued = 0.0
    blocks = 0
    kv_bytes = 2 * kv_heads * head_dim * DTYPE_BYTES[kv_dtype]
    row_flops = 4.0 * heads * head_dim
    row_bytes = 2.0 * ACTIVATION_BYTES * heads * head_dim
    for fresh, cached in chunks:
        rows, row_blocks = attention_rows(fresh)
        flops += row_flops * fresh * (cached + (fresh + 1) / 2)
        moved += row_bytes * fresh + kv_bytes * (fresh + cached)
        blocks += heads * row_blocks
        issued += row_flops * row_blocks * rows * (cached + rows * (row_blocks + 1) / 2)
    return flops, moved, blocks, issued


def prefill_attention(chunks: Chunks, heads: int, kv_heads: int, head_dim: int, kv_dtype: DType = "bf16") -> Kernel:
    """Causal attention of one layer: of each sequence ``new`` queries over ``cached`` + ``new`` keys, in one launch.

    A block takes 128 query rows of a head (fewer, by powers of two down to 16, for a shorter chunk) and walks all
    keys up to its last row. With several sequences ``block_flops`` is the mean over their blocks.
    """
    flops, moved, blocks, issued = prompt_totals(chunks, heads, kv_heads, head_dim, kv_dtype)
    op, dims = "attention_prefill", (heads, kv_heads, head_dim, DTYPE_BYTES[kv_dtype])
    # This is made for every new chunk, and its own constructor takes three times as long.
    shape = (op, "attention", flops, moved, "bf16", blocks, issued / blocks, 0.0, 1.0, op, 0.0, dims, chunks)
    return new(Kernel, (*shape, (1.0,), "roofline"))


def attention_rows(new: int) -> tuple[int, int]:
    """(query rows of one block, blocks a head) of a chunk of ``new`` tokens."""
    rows = ATTENTION_ROWS if new > ATTENTION_ROWS else max(16, 1 << (new - 1).bit_length())
    return rows, -(-new // rows)


def decode_attention(
    requests: int, context_tokens: float, heads: int, kv_heads: int, head_dim: int, kv_dtype: DType = "bf16"
) -> Kernel:
    """Attention of one layer for one new token in each of ``requests`` sequences over ``context_tokens`` keys in all.

    Split along the keys (flash decoding), so that the blocks fill any number of SMs.
    """
    rates = decode_rates(heads, kv_heads, head_dim, kv_dtype)
    return Kernel(
        "attention_decode",
        "attention",
        flops=context_tokens * rates.flops_per_token,
        dram_bytes=context_tokens * rates.bytes_per_token + requests * rates.bytes_per_request,
        op="attention_decode",
        size=context_tokens,
        dims=(requests, heads, kv_heads, head_dim, DTYPE_BYTES[kv_dtype]),
    )


def decode_rates(heads: int, kv_heads: int, head_dim: int, kv_dtype: DType) -> DecodeAttention:
    """What one layer's decode attention takes of compute and memory, by token and by request."""
    width = heads * head_dim
    kv_bytes = 2 * kv_heads * head_dim * DTYPE_BYTES[kv_dtype]
    return DecodeAttention(4.0 * width, kv_bytes, 2.0 * width * ACTIVATION_BYTES)


def elementwise(op: str, name: str, tokens: float, dims: tuple[int, ...], elements: float, extra: float = 0) -> Kernel:
    """A kernel that only moves ``elements`` activations and ``extra`` bytes; its arithmetic is not counted."""
    moved = elements * ACTIVATION_BYTES + extra
    return Kernel(name, "memory", dram_bytes=moved, op=op, size=tokens, dims=dims)


def norm(name: str, tokens: float, width: int) -> Kernel:
    """RMSNorm fused with the residual sum: reads both, writes both."""
    return elementwise("norm", name, tokens, (width,), 4 * tokens * width)


def rotary(tokens: int, heads: int, kv_heads: int, head_dim: int, kv_dtype: DType = "bf16") -> Kernel:
    """Rotary positions in place, and K and V written to the cache in its own dtype."""
    query, kv = heads * head_dim, kv_heads * head_dim
    written = tokens * 2 * kv * DTYPE_BYTES[kv_dtype]
    moved = tokens * (2 * query + 2 * kv)
    return elementwise("rotary", "rotary_and_kv_write", tokens, (heads, kv_heads, head_dim), moved, written)


def activation(name: str, tokens: float, width: int, inputs: int = 2) -> Kernel:
    """SiLU of the gate times up (or one input alone): ``width`` columns out."""
    return elementwise("activation", name, tokens, (width,), (inputs + 1) * tokens * width)


def embedding(tokens: int, width: int, tables: int = 1) -> Kernel:
    """Look-up of ``tokens`` rows in one table or two (learned positions), written once."""
    return elementwise("embedding", "embedding", tokens, (width,), (1 + tables) * tokens * width)


def sampling(rows: int, vocab: int) -> Kernel:
    """Reads the logits of ``rows`` sequences twice: softmax and choice."""
    return elementwise("sampling", "sampling", rows, (vocab,), 2 * rows * vocab)


def all_reduce(name: str, reduced_bytes: float, devices: int) -> Kernel:
    """A ring all-reduce: every device sends 2 (n - 1) / n of the array."""
    sent = 2 * (devices - 1) / devices * reduced_bytes
    return Kernel(name, "link", link_bytes=sent, op="all_reduce", size=reduced_bytes, dims=(devices,))


@dataclass(frozen=True)
class Shard:
    """One device's part of a model split ``tensor_parallel`` ways: heads, MLP columns, vocabulary rows.

    KV heads are replicated where there are fewer of them than devices; experts are split by columns, like MLPs.
    Raises ValueError where heads or widths do not divide.

    heads, kv_heads: on one device. kv_bytes_per_token_layer: bytes of K and V of one token in one layer, there.
    """

    model: ModelSpec
    device: DeviceSpec
    tensor_parallel: int
    heads: int = field(init=False)
    kv_heads: int = field(init=False)
    kv_bytes_per_token_layer: int = field(init=False)
    decode_attention: DecodeAttention = field(init=False)

    def __post_init__(self) -> None:
        self._check_division()
        model = self.model
        heads, kv_heads = model.heads // self.tensor_parallel, max(1, model.kv_heads // self.tensor_parallel)
        kv_bytes = 2 * kv_heads * model.head_dim * DTYPE_BYTES[model.kv_dtype]
        rates = decode_rates(heads, kv_heads, model.head_dim, model.kv_dtype)
        object.__setattr__(self, "heads", heads)
        object.__setattr__(self, "kv_heads", kv_heads)
        object.__setattr__(self, "kv_bytes_per_token_layer", kv_bytes)
        object.__setattr__(self, "decode_attention", rates)

    def _check_division(self) -> None:
        model, ways = self.model, self.tensor_parallel
        if ways < 1:
            raise ValueError(f"tensor_parallel is {ways}; it must be 1 or more")
        widths = (("heads", model.heads), ("intermediate", model.intermediate))
        experts = (("moe_intermediate", model.moe_intermediate), ("shared_intermediate", model.shared_intermediate))
        for name, width in widths + experts:
            if width % ways:
                raise ValueError(
                    f"tensor_parallel {ways} does not divide {name} = {width} of {model.name}; take a divisor of it"
                )
        if model.kv_heads % ways and ways % model.kv_heads:
            raise ValueError(
                f"tensor_parallel {ways} and the {model.kv_heads} kv_heads of {model.name}: neither divides the other"
            )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers on one device."""
        return self.model.layers * self.kv_bytes_per_token_layer

    @property
    def activation_bytes_per_token(self) -> int:
        """Bytes live at the widest point of a layer: residual, normed and output rows, and the MLP's inner ones."""
        model = self.model
        sparse = model.experts_per_token * model.moe_intermediate + model.shared_intermediate
        width = model.mlp_matrices * max(model.intermediate, sparse) // self.tensor_parallel
        return (4 * model.hidden + width) * ACTIVATION_BYTES

    def kernels(self, work: Work) -> list[Kernel]:
        """Every kernel of a launch, in order of first use; ``runs`` says how often each runs."""
        model = self.model
        layers = model.layers if work.layers is None else work.layers
        in_layers = self.layer_kernels(work.new_tokens)
        if work.prefill:
            in_layers.append(self.attention_prefill(work.prefill))
        if work.decode_requests:
            in_layers.append(self.attention_decode(work.decode_requests, work.decode_context_tokens))
        launched = [kernel._replace(runs=kernel.runs * layers) for kernel in in_layers]
        if work.layers is not None and not work.head:
            return launched
        rows = len(work.prefill) + work.decode_requests
        return [*self.embedding_kernels(work.new_tokens), *launched, *self.head_kernels(rows)]

    def layer_kernels(self, tokens: int) -> list[Kernel]:
        """One layer on ``tokens`` tokens, attention itself excepted: all that depends on their number alone."""
        model = self.model
        sparse = model.moe_layers / model.layers
        kernels = self._projections(tokens)
        kernels.append(norm("mlp_norm", tokens, model.hidden))
        if sparse < 1:
            width = model.intermediate // self.tensor_parallel
            kernels += [kernel._replace(runs=1 - sparse) for kernel in self._mlp("", tokens, width)]
        if sparse > 0:
            kernels += [kernel._replace(runs=sparse) for kernel in self._experts(tokens)]
        return kernels + self._all_reduce("mlp_all_reduce", tokens)

    def attention_prefill(self, chunks: Chunks) -> Kernel:
        """Attention of one layer for all prefilling sequences of a launch; see :func:`prefill_attention`."""
        return prefill_attention(chunks, self.heads, self.kv_heads, self.model.head_dim, self.model.kv_dtype)

    def prompt_totals(self, chunks: Chunks) -> tuple[float, float, int, float]:
        """What is in that, without a kernel; see :func:`prompt_totals`."""
        return prompt_totals(chunks, self.heads, self.kv_heads, self.model.head_dim, self.model.kv_dtype)

    def attention_decode(self, requests: int, context_tokens: float) -> Kernel:
        """Attention of one layer for all decoding sequences of a launch; see :func:`decode_attention`."""
        model = self.model
        return decode_attention(requests, context_tokens, self.heads, self.kv_heads, model.head_dim, model.kv_dtype)

    def embedding_kernels(self, tokens: int) -> list[Kernel]:
        """Table look-up of ``tokens`` tokens, once a pass; under tensor parallelism the parts are summed."""
        tables = 2 if self.model.learned_positions else 1
        return [embedding(tokens, self.model.hidden, tables), *self._all_reduce("embedding_all_reduce", tokens)]

    def head_kernels(self, rows: int) -> list[Kernel]:
        """Final norm, LM head and sampling for ``rows`` sequences."""
        model, ways = self.model, self.tensor_parallel
        columns = -(-model.vocab // ways)
        kernels = [
            norm("final_norm", rows, model.hidden),
            self._gemm("lm_head", rows, columns, model.hidden, dtype="bf16"),
        ]
        if ways > 1:
            sent = rows * columns * ACTIVATION_BYTES * (ways - 1)
            kernels.append(Kernel("logits_all_gather", "link", link_bytes=sent))
        return [*kernels, sampling(rows, model.vocab)]

    def _projections(self, tokens: int) -> list[Kernel]:
        model = self.model
        query, kv = self.heads * model.head_dim, self.kv_heads * model.head_dim
        kernels = [
            norm("attention_norm", tokens, model.hidden),
            self._gemm("qkv", tokens, query + 2 * kv, model.hidden),
        ]
        if model.qk_norm:
            kernels.append(elementwise("", "qk_norm", tokens, (), 2 * tokens * (query + kv)))
        kernels.append(rotary(tokens, self.heads, self.kv_heads, model.head_dim, model.kv_dtype))
        kernels.append(self._gemm("o", tokens, model.hidden, query))
        return kernels + self._all_reduce("attention_all_reduce", tokens)

    def _mlp(self, prefix: str, tokens: int, width: int) -> list[Kernel]:
        hidden, inputs = self.model.hidden, self.model.mlp_matrices - 1
        return [
            self._gemm(f"{prefix}gate_up", tokens, inputs * width, hidden),
            activation(f"{prefix}activation", tokens, width, inputs),
            self._gemm(f"{prefix}down", tokens, hidden, width),
        ]

    def _experts(self, tokens: int) -> list[Kernel]:
        """Router, then grouped products over the experts touched: E (1 - (1 - k/E)^tokens) of them, expected.

        Every token chooses k of E experts independently and evenly; real routers are less even, so fewer experts
        are touched by few tokens and some get more rows than others.
        """
        model, ways = self.model, self.tensor_parallel
        chosen = model.experts_per_token
        touched = model.experts * (1 - (1 - chosen / model.experts) ** tokens)
        width = model.moe_intermediate // ways
        inputs = model.mlp_matrices - 1
        routed = tokens * chosen
        kernels = [
            self._gemm("router", tokens, model.experts, model.hidden, dtype="bf16"),
            elementwise("", "top_k", tokens, (), 2 * tokens * model.experts),
            elementwise("", "dispatch", tokens, (), (tokens + routed) * model.hidden),
            self._grouped("experts_gate_up", routed, inputs * width, model.hidden, touched),
            activation("experts_activation", routed, width, inputs),
            self._grouped("experts_down", routed, model.hidden, width, touched),
            elementwise("", "combine", tokens, (), (tokens + routed) * model.hidden),
        ]
        if model.shared_intermediate:
            kernels += self._mlp("shared_", tokens, model.shared_intermediate // ways)
        return kernels

    def _gemm(self, name: str, rows: int, columns: int, depth: int, dtype: DType | None = None) -> Kernel:
        return self._grouped(name, rows, columns, depth, 1.0, dtype)

    def _grouped(
        self, name: str, rows: int, columns: int, depth: int, groups: float, dtype: DType | None = None
    ) -> Kernel:
        return gemm(name, rows, columns, depth, self.device.sms, dtype or self.model.dtype, groups)

    def _all_reduce(self, name: str, tokens: int) -> list[Kernel]:
        """An all-reduce of the hidden states."""
        if self.tensor_parallel == 1:
            return []
        return [all_reduce(name, tokens * self.model.hidden * ACTIVATION_BYTES, self.tensor_parallel)]
