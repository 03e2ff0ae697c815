"""A decoder's forward pass in few operations, for the architectures of most pairs.

A small model spends more time in Python and small kernels than in arithmetic. Transformers' pass takes about sixty operations per
layer, this one about twenty, and ten on a GPU: projections of one input are one matrix, queries and keys are rotated together,
and grouped queries share their keys without a copy.
"""

from collections.abc import Sequence
from typing import Any

import psutil
import torch
from torch import Tensor, split_with_sizes
from torch.linalg import vector_norm
from torch.nn import Linear, Parameter
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from lm_eval_takeover.forward.caches import LONGEST, PassPlan, RaggedCache, RaggedLayer
from lm_eval_takeover.kernels import operations as kernels

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_PACKED_SHARE = 0.25  # of the free memory that a second copy of the weights may take
_ROPE = ("default", "linear", "llama3", "yarn")  # rotations that depend on the position alone
SMALL = 2**19  # weights of a matrix that stays in a core's cache
# Numbers of tokens for which a layout is the fastest. `[in, out]`: any in float32, few in bfloat16. oneDNN's: some in float32,
# any in bfloat16.
_ANY, _SOME, _FEW = range(1, 2**31), range(2, 257), range(1, 9)


def computes_bfloat16() -> bool:
    """Whether this CPU has bfloat16 arithmetic, as far as torch can tell."""
    features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return features.get("architecture") != "x86_64" or any(features.get(name) for name in ("avx512_bf16", "amx_bf16"))


def packed_dtype(dtype: torch.dtype) -> torch.dtype | None:
    """The dtype of the second copy that a CPU keeps of weights of this dtype; None where it keeps none."""
    if dtype == torch.bfloat16 and not computes_bfloat16():
        return torch.float32
    return dtype if dtype in (torch.float32, torch.bfloat16) else None


class Projection:
    """Linear modules that read one input, as one matrix: `x W^T + b` in the layout that is fastest for the number of tokens.

    The modules keep views of it, so no weight is stored twice. A CPU stores a second copy of small weights if a view cannot
    transpose them or widen them to float32, and of large ones with `pack`.

    On a CPU, MKL takes several times as long for 2 to 60 tokens as for one, though it reads the same weights. Small weights are
    stored as `[in, out]`, so no product transposes them. Large ones have a second copy in oneDNN's layout: on two cores with
    AVX-512 it halves a float32 pass over 12 tokens; with AMX, a bfloat16 pass takes two thirds to three quarters. A CPU without
    bfloat16 arithmetic has float32 copies: torch's emulation rounds the same sums and takes three times as long.
    """

    def __init__(self, modules: Sequence[Any], *, pack: bool = False) -> None:
        first = modules[0].weight
        packed = packed_dtype(first.dtype) if first.device.type == "cpu" else None
        weight = torch.cat([module.weight for module in modules]) if len(modules) > 1 else first
        bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
        self._transposed: Tensor | None = None  # float32 `[in, out]`
        self._counts_transposed = range(0)  # numbers of tokens for which it is used
        if packed is not None and weight.numel() <= SMALL:
            self._transposed = weight.t().float().contiguous()
            self._counts_transposed = _ANY if first.dtype == torch.float32 else _FEW
            if first.dtype == torch.float32 and len(modules) > 1:
                weight = self._transposed.t()
        self.weight, self.bias = weight, bias
        self._by_gpu = weight.device.type == "cuda"
        self._packed: Tensor | None = None
        if packed is not None and pack and self._counts_transposed is not _ANY:
            self._packed = _pack(weight.to(packed))
        self._counts_packed = _ANY if packed == torch.bfloat16 else _SOME
        self._float_bias = None if bias is None else bias.float()
        start = 0
        for module in modules if len(modules) > 1 else ():  # each keeps its rows of the common matrix
            end = start + len(module.weight)
            module.weight = Parameter(weight[start:end], requires_grad=False)
            if bias is not None:
                module.bias = Parameter(bias[start:end], requires_grad=False)
            start = end

    def __call__(self, x: Tensor) -> Tensor:
        """Of x `[tokens, in]`: `[tokens, out]`, contiguous."""
        if len(x) in self._counts_transposed:
            if x.dtype != torch.float32:
                return self(x.float()).to(x.dtype)
            assert self._transposed is not None
            bias = self._float_bias
            return torch.mm(x, self._transposed) if bias is None else torch.addmm(bias, x, self._transposed)
        if self._packed is not None and len(x) in self._counts_packed:
            if self._packed.dtype == x.dtype:
                return _multiply_packed(x, self._packed, self.bias)
            return _multiply_packed(x.float(), self._packed, self._float_bias).to(x.dtype)
        return linear(x, self.weight, self.bias)

    def add_to(self, sum_: Tensor, x: Tensor) -> Tensor:
        """`sum_ + self(x)`, sum_ `[tokens, out]`, which may be overwritten."""
        if self._counts_transposed is _ANY and self.bias is None:
            assert self._transposed is not None
            return torch.addmm(sum_, x, self._transposed)
        if self._by_gpu and self.bias is None:
            return sum_.addmm_(x, self.weight.t())  # elsewhere, torch copies the sum first
        return sum_ + self(x)


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None where this build of torch has none."""
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
        _multiply_packed(weight.new_ones(2, weight.shape[1]), packed, None)
    except (AttributeError, RuntimeError):
        return None
    return packed


def _multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


class RMSNorm:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension; weight `[size]` or `[..., size]`."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps, self.size = weight, eps, weight.shape[-1]
        self.by_kernel = kernels.run_on(weight.device)
        # Half as many kernels on a CPU, where torch has no fused one: sqrt(sum(x^2) + size eps) is a hypotenuse.
        self.by_hypot = weight.device.type == "cpu"
        if self.by_hypot:
            self.root = torch.tensor(self.size**0.5)
            self.scaled = weight * self.root
            self.least = torch.tensor((self.size * eps) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        if self.by_kernel and x.dim() == 2:
            return kernels.normalise(x, self.weight, self.eps)
        if not self.by_hypot:
            return rms_norm(x, (self.size,), None, self.eps) * self.weight
        if x.dtype == torch.float32:
            return torch.div(x, torch.hypot(vector_norm(x, 2, -1, True), self.least)).mul_(self.scaled)
        full = x.float()
        full.mul_(torch.div(self.root, torch.hypot(vector_norm(full, 2, -1, True), self.least)))
        return full.to(x.dtype).mul_(self.weight)  # rounded where transformers rounds


class LeanLayer:
    def __init__(self, layer: Any, config: Any, *, pack: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.group = self.heads // self.kv_heads
        self.head_dim = int(attention.head_dim)
        self.scale = float(attention.scaling)
        eps = float(config.rms_norm_eps)
        self.norm_in = RMSNorm(layer.input_layernorm.weight, eps)
        self.norm_mlp = RMSNorm(layer.post_attention_layernorm.weight, eps)
        self.qkv = Projection([attention.q_proj, attention.k_proj, attention.v_proj], pack=pack)
        self.out = Projection([attention.o_proj], pack=pack)
        self.gate_up = Projection([mlp.gate_proj, mlp.up_proj], pack=pack)
        self.down = Projection([mlp.down_proj], pack=pack)
        self.head_norm: RMSNorm | None = None
        if hasattr(attention, "q_norm"):
            queries, keys = attention.q_norm.weight, attention.k_norm.weight
            both = torch.cat([queries.expand(self.heads, -1), keys.expand(self.kv_heads, -1)])
            self.head_norm = RMSNorm(both, eps)


class LeanDecoder:
    """The layers of a model that `supports` accepts: `compute_hidden`, then `compute_logits`."""

    def __init__(self, model: Any) -> None:
        config, inner = model.config.get_text_config(), model.model
        self.embed = inner.embed_tokens.weight
        packed = packed_dtype(self.embed.dtype)
        copy_bytes = 0 if packed is None else sum(p.numel() for p in model.parameters()) * packed.itemsize
        pack = copy_bytes <= _PACKED_SHARE * psutil.virtual_memory().available
        # No inference tensors: other users of the model may need gradients.
        with torch.inference_mode(False), torch.no_grad():
            self.norm = RMSNorm(inner.norm.weight, float(config.rms_norm_eps))
            self.layers = [LeanLayer(layer, config, pack=pack) for layer in inner.layers]
            self.head = Projection([model.lm_head], pack=pack)
        dim = self.layers[0].head_dim
        self._by_kernels = kernels.run_on(self.embed.device) and dim & (dim - 1) == 0
        self._rotary = inner.rotary_emb
        self._rotations: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether the model has a known architecture without changes to its computation."""
        config = model.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        linears = [module for name, module in model.named_modules() if name.endswith(("_proj", "lm_head"))]
        return (
            type(model).__name__ in ARCHITECTURES
            and getattr(config, "hidden_act", "") == "silu"
            and rope.get("rope_type", "default") in _ROPE
            and all(map(_is_plain, linears))  # neither quantized, adapted nor hooked
            and len({module.weight.device for module in linears}) == 1
            and model.lm_head.bias is None
        )

    def prepare_rotations(self, columns: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of the first `columns` positions, or more: `[positions, 1, head_dim]` each."""
        if self._rotations is None or len(self._rotations[0]) < columns:
            cos, sin = self._rotary(self.embed, torch.arange(max(2 * columns, 1024), device=self.embed.device)[None])
            half = sin.shape[-1] // 2
            signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
            self._rotations = (cos[0][:, None].contiguous(), signed[:, None].contiguous())
        return self._rotations

    def compute_hidden(self, ids: Tensor, masks: list[Tensor | None], cache: RaggedCache) -> Tensor:
        """Last hidden states `[rows, new, hidden]`. One mask `[rows, 1, new, columns]` per layer, None to attend to all."""
        (rows, new), plan = ids.shape, cache.plan
        x = embedding(ids.reshape(-1), self.embed)  # `[tokens, hidden]`
        rotations = self.prepare_rotations(plan.columns)
        if not self._by_kernels:
            places = plan.positions if plan.aligned_start is None else slice(plan.aligned_start, plan.columns)
            rotations = rotations[0][places], rotations[1][places]  # `[rows or 1, new, 1, head_dim]`
        rotate, activate = (_rotate_by_kernel, kernels.activate) if self._by_kernels else (_rotate, _activate)
        attends_by_kernel = self._by_kernels and self.layers[0].head_dim >= 16 and new <= LONGEST
        if new > 1 and not attends_by_kernel:
            masks = _repeat_for_groups(masks, self.layers[0].group)
        for layer, mask, cached in zip(self.layers, masks, cache.layers, strict=True):
            qkv = layer.qkv(layer.norm_in(x)).view(rows, new, -1, layer.head_dim)
            queries, keys, values = rotate(qkv, layer, rotations, cached, plan)
            if attends_by_kernel and mask is not None:
                attended = kernels.attend(queries, keys, values, mask, layer.scale).view(rows * new, -1)
            else:
                attended = _attend(queries, keys, values, mask, layer)
            x = layer.out.add_to(x, attended)
            x = layer.down.add_to(x, activate(layer.gate_up(layer.norm_mlp(x))))
        return self.norm(x).view(rows, new, -1)

    def compute_logits(self, hidden: Tensor, vocab: int) -> Tensor:
        """Of hidden states `[..., hidden]`, for the first `vocab` tokens: `[..., vocab]`."""
        return self.head(hidden.reshape(-1, hidden.shape[-1]))[:, :vocab].view(*hidden.shape[:-1], vocab)


def _rotate(
    qkv: Tensor, layer: LeanLayer, rotations: tuple[Tensor, Tensor], cached: RaggedLayer, plan: PassPlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the new keys and values. Returns the queries `[rows, new, heads, dim]`, and all keys and values as `cached.read`."""
    qk, values = split_with_sizes(qkv, (layer.heads + layer.kv_heads, layer.kv_heads), 2)
    if layer.head_norm is not None:
        qk = layer.head_norm(qk)
    qk = (qk * rotations[0]).add_(qk.roll(layer.head_dim // 2, -1) * rotations[1])  # rounds each product, as transformers does
    queries, keys = split_with_sizes(qk, (layer.heads, layer.kv_heads), 2)
    return queries, *cached.write(keys, values, plan)


def _rotate_by_kernel(
    qkv: Tensor, layer: LeanLayer, rotations: tuple[Tensor, Tensor], cached: RaggedLayer, plan: PassPlan
) -> tuple[Tensor, Tensor, Tensor]:
    """As `_rotate`, in one kernel; rotations by position, of all columns."""
    buffers = cached.reserve(plan.columns, split_with_sizes(qkv, (layer.heads, layer.kv_heads, layer.kv_heads), 2)[1:])
    weight, eps = (None, 0.0) if layer.head_norm is None else (layer.head_norm.weight, layer.head_norm.eps)
    queries = kernels.rotate(qkv, weight, rotations, (plan.slots, plan.positions), buffers, eps)
    return queries, *cached.read(plan)


def _activate(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return silu(gate).mul_(up)


def _repeat_for_groups(masks: list[Tensor | None], group: int) -> list[Tensor | None]:
    """The masks as `_attend` reads them: `[rows, 1, group * new, columns]`, the heads of a group behind each other."""
    distinct = {id(mask): mask for mask in masks if mask is not None and group > 1}
    repeated = {key: mask.repeat(1, 1, group, 1) for key, mask in distinct.items()}
    return [repeated.get(id(mask), mask) for mask in masks]


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, layer: LeanLayer) -> Tensor:
    """Attention of queries `[rows, new, heads, dim]`: `[rows * new, heads * dim]`."""
    rows, new, heads, dim = queries.shape
    group = layer.group  # its queries are read as so many more positions, so that no key is repeated
    if new == 1:
        grouped = queries.view(rows, layer.kv_heads, group, dim)
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=layer.scale)
        return attended.reshape(rows, heads * dim)
    grouped = queries.view(rows, new, layer.kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(rows, layer.kv_heads, group * new, dim)
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=layer.scale)
    attended = attended.view(rows, layer.kv_heads, group, new, dim).permute(0, 3, 1, 2, 4)
    return attended.reshape(rows * new, heads * dim)


def _is_plain(module: Any) -> bool:
    hooked = "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks
    return type(module) is Linear and type(module.weight) is Parameter and not hooked
