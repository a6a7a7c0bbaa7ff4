"""How fast a model server is: the constants of the engine model, derived from published figures.

A step of the engine costs, in seconds,

    step + prefill_token * prefill tokens + token_pair * (prefill token, earlier token) pairs
         + sequence * decoding sequences + context_token * tokens that they attend to

Each constant follows from the model's shape, the accelerator's data sheet and three efficiencies:

* `step`: reading the weights once (bytes / bandwidth), plus what the host spends a step, plus two
  all-reduces a layer where the weights are spread over several accelerators;
* `prefill_token`: 2 FLOP a parameter and token (Kaplan et al. 2020, section 2.1);
* `token_pair`: attention's scores and weighted sum, 4 FLOP a layer, head and head dimension;
* `sequence`: the same 2 FLOP a parameter for the one token of a decoding sequence, and the host's
  share a sequence (sampling, detokenising, output);
* `context_token`: reading its keys and values once a step.

The sum overstates a mixed step a little (compute hides the reading of weights): by 2 % where the
budget of 8,192 tokens is full. Data sheets: NVIDIA H100 SXM (989 TFLOP/s dense bf16, 3.35 TB/s,
80 GB), H200 (the same compute, 4.8 TB/s, 141 GB). Model shapes: the `config.json` that each model
is published with. The efficiencies are assumptions of the order that serving benchmarks report
(0.5 of peak FLOP/s in prefill, 0.7 of peak bandwidth in decode); absolute times promise nothing,
ratios between routing rules hold over a wide range of them.
"""

import msgspec

BLOCK_TOKENS = 16
"""vLLM's default KV block."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a dense decoder, weights and KV cache in bf16."""

    name: str
    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_size: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, 2 bytes each."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator's data sheet."""

    name: str
    flops_per_second: float
    """Dense bf16."""
    bytes_per_second: float
    memory_bytes: float


LLAMA_8B = Model(name="Llama-3.1-8B", parameters=8.03e9, layers=32, heads=32, kv_heads=8, head_size=128)
QWEN_32B = Model(name="Qwen3-32B", parameters=32.8e9, layers=64, heads=64, kv_heads=8, head_size=128)
LLAMA_70B = Model(name="Llama-3.3-70B", parameters=70.6e9, layers=80, heads=64, kv_heads=8, head_size=128)

H100 = Accelerator(name="H100", flops_per_second=989e12, bytes_per_second=3.35e12, memory_bytes=80e9)
H200 = Accelerator(name="H200", flops_per_second=989e12, bytes_per_second=4.8e12, memory_bytes=141e9)

COMPUTE_EFFICIENCY = 0.5
BANDWIDTH_EFFICIENCY = 0.7
PARALLEL_EFFICIENCY = 0.9
"""What is left of the compute when every layer waits for its peers."""
HOST_STEP_SECONDS = 0.002
HOST_SEQUENCE_SECONDS = 2e-5
ALL_REDUCE_SECONDS = 1.5e-5
"""A small message over NVLink; its cost is latency."""
MEMORY_UTILIZATION = 0.92
"""vLLM's `gpu_memory_utilization` by default, as its recorded `cache_config_info` says."""
ACTIVATION_BYTES = 3e9
"""Activations, CUDA graphs and the runtime, an accelerator."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of model server. All times in seconds; see the module for what each one is."""

    name: str
    step_seconds: float
    prefill_token_seconds: float
    token_pair_seconds: float
    sequence_seconds: float
    context_token_seconds: float
    kv_capacity_tokens: int
    batch_tokens_max: int = 8192
    """Token budget of a step: vLLM's `max_num_batched_tokens` for a server on such accelerators."""
    sequences_max: int = 1024
    """Running sequences: vLLM's `max_num_seqs`, likewise."""

    @property
    def blocks(self) -> int:
        """KV blocks of `BLOCK_TOKENS`: vLLM's `num_gpu_blocks`."""
        return self.kv_capacity_tokens // BLOCK_TOKENS

    @property
    def prefill_tokens_per_second(self) -> float:
        """Peak prefill rate: full steps, short prompts, nobody decoding."""
        return self.batch_tokens_max / (self.step_seconds + self.batch_tokens_max * self.prefill_token_seconds)

    def decode_tokens_per_second(self, sequences: int, context_tokens: float) -> float:
        """Rate of a batch of `sequences` that attend to `context_tokens` each."""
        return sequences / self.duration(sequences=sequences, context_tokens=sequences * context_tokens)

    def duration(
        self, *, prefill_tokens: int = 0, token_pairs: float = 0.0, sequences: int = 0, context_tokens: float = 0.0
    ) -> float:
        """Seconds of one step."""
        return (
            self.step_seconds
            + self.prefill_token_seconds * prefill_tokens
            + self.token_pair_seconds * token_pairs
            + self.sequence_seconds * sequences
            + self.context_token_seconds * context_tokens
        )

    def faster(self, factor: float) -> "Profile":
        """The same server, `factor` times as fast (0.3: an older or throttled one)."""
        times = {name: getattr(self, name) / factor for name in self.__struct_fields__ if name.endswith("_seconds")}
        return msgspec.structs.replace(self, name=f"{self.name} x{factor:g}", **times)

    def with_capacity(self, tokens: int) -> "Profile":
        """The same server with another KV capacity."""
        return msgspec.structs.replace(self, kv_capacity_tokens=tokens)


def derive(name: str, model: Model, accelerator: Accelerator, count: int) -> Profile:
    """A profile of `model` spread over `count` accelerators (tensor parallel)."""
    spread = PARALLEL_EFFICIENCY if count > 1 else 1.0
    flops = count * accelerator.flops_per_second * COMPUTE_EFFICIENCY * spread
    bandwidth = count * accelerator.bytes_per_second * BANDWIDTH_EFFICIENCY
    weight_bytes = 2 * model.parameters
    token_flops = 2 * model.parameters
    free_bytes = count * (accelerator.memory_bytes * MEMORY_UTILIZATION - ACTIVATION_BYTES) - weight_bytes
    waits = 2 * model.layers * ALL_REDUCE_SECONDS if count > 1 else 0.0
    return Profile(
        name=name,
        step_seconds=weight_bytes / bandwidth + HOST_STEP_SECONDS + waits,
        prefill_token_seconds=token_flops / flops,
        token_pair_seconds=4 * model.layers * model.heads * model.head_size / flops,
        sequence_seconds=token_flops / flops + HOST_SEQUENCE_SECONDS,
        context_token_seconds=model.kv_bytes_per_token / bandwidth,
        kv_capacity_tokens=int(free_bytes / model.kv_bytes_per_token) // BLOCK_TOKENS * BLOCK_TOKENS,
    )


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        derive("8b-h100", LLAMA_8B, H100, 1),
        derive("8b-h200", LLAMA_8B, H200, 1),
        derive("32b-2xh100", QWEN_32B, H100, 2),
        derive("70b-4xh100", LLAMA_70B, H100, 4),
    )
}
DEFAULT_PROFILE = "8b-h100"
