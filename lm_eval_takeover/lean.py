"""A decoder's forward pass in as few operations as it takes, for the architectures that most pairs have.

A small model's token costs more in Python and in small kernels than in arithmetic: transformers' own pass takes about sixty
operations per layer, this one about twenty. Projections that read the same input are one matrix (the modules keep views of
it, so that no weight is held twice), queries and keys are rotated together, and grouped queries share their keys without a copy.
"""

from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn import Linear, Parameter
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from lm_eval_takeover.ragged_cache import Plan, RaggedCache

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPE = ("default", "linear", "llama3", "yarn")  # rotations that depend on the position alone


class RMSNorm:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension; weight `[size]` or `[..., size]`."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps, self.size = weight, eps, weight.shape[-1]
        # Three kernels instead of seven, where torch has no fused one: sqrt(sum(x^2) + size eps) is a hypotenuse.
        self.by_hypot = weight.device.type == "cpu" and weight.dtype == torch.float32
        if self.by_hypot:
            self.scaled = weight * self.size**0.5
            self.least = torch.tensor((self.size * eps) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        if self.by_hypot:
            normed: Tensor = x / torch.hypot(vector_norm(x, dim=-1, keepdim=True), self.least) * self.scaled
            return normed
        return rms_norm(x, (self.size,), None, self.eps) * self.weight


class LeanLayer:
    """The weights of one decoder layer."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.group = self.heads // self.kv_heads
        self.head_dim = int(attention.head_dim)
        self.scale = float(attention.scaling)
        eps = float(config.rms_norm_eps)
        self.norm_in = RMSNorm(layer.input_layernorm.weight, eps)
        self.norm_mlp = RMSNorm(layer.post_attention_layernorm.weight, eps)
        self.qkv, self.qkv_bias = _fused(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.out_bias = attention.o_proj.weight, attention.o_proj.bias
        self.gate_up, self.gate_up_bias = _fused(mlp.gate_proj, mlp.up_proj)
        self.down, self.down_bias = mlp.down_proj.weight, mlp.down_proj.bias
        self.head_norm: RMSNorm | None = None
        if hasattr(attention, "q_norm"):
            queries, keys = attention.q_norm.weight, attention.k_norm.weight
            both = torch.cat([queries.expand(self.heads, -1), keys.expand(self.kv_heads, -1)])
            self.head_norm = RMSNorm(both, eps)


class LeanDecoder:
    """`hidden(ids, masks, cache)` of a model that `supports` accepts."""

    def __init__(self, model: Any) -> None:
        config, inner = model.config.get_text_config(), model.model
        self.embed, self.head = inner.embed_tokens.weight, model.lm_head.weight
        # The fused weights stay ordinary ones, for whoever else uses the model.
        with torch.inference_mode(False), torch.no_grad():
            self.norm = RMSNorm(inner.norm.weight, float(config.rms_norm_eps))
            self.layers = [LeanLayer(layer, config) for layer in inner.layers]
        self._rotary = inner.rotary_emb
        self._rotations: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether the model is one of the known architectures, its computation as the architecture has it."""
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

    def rotations(self, columns: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of the first `columns` positions, or more: `[positions, 1, head_dim]` each."""
        if self._rotations is None or len(self._rotations[0]) < columns:
            cos, sin = self._rotary(self.embed, torch.arange(max(2 * columns, 1024), device=self.embed.device)[None])
            half = sin.shape[-1] // 2
            signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
            self._rotations = (cos[0][:, None].contiguous(), signed[:, None].contiguous())
        return self._rotations

    def rotation(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """cos and signed sin of the new positions: `[rows or 1, new, 1, head_dim]` each."""
        cos, sin = self.rotations(plan.columns)
        if plan.start is not None:
            return cos[plan.start : plan.columns], sin[plan.start : plan.columns]
        return cos[plan.places], sin[plan.places]

    def hidden(self, ids: Tensor, masks: list[Tensor | None], cache: RaggedCache) -> Tensor:
        """Last hidden states `[rows, new, hidden]`. One mask `[rows, 1, new, columns]` per layer, None to see everything."""
        rows, new = ids.shape
        x = embedding(ids, self.embed)
        cos, sin = self.rotation(cache.plan)
        masks = _for_groups(masks, self.layers[0].group)
        for layer, mask, stored in zip(self.layers, masks, cache.layers, strict=True):
            dim, both = layer.head_dim, layer.heads + layer.kv_heads
            mixed = project(layer.norm_in(x), layer.qkv, layer.qkv_bias).contiguous()
            mixed = mixed.view(rows, new, both + layer.kv_heads, dim)
            turned, values = mixed[:, :, :both], mixed[:, :, both:]
            if layer.head_norm is not None:
                turned = layer.head_norm(turned)
            turned = torch.addcmul(turned * cos, turned.roll(dim // 2, -1), sin)
            queries = turned[:, :, : layer.heads]
            keys, values = stored.update(turned[:, :, layer.heads :].transpose(1, 2), values.transpose(1, 2))
            attended = _attend(queries, keys, values, mask, layer)
            x = x + project(attended, layer.out, layer.out_bias).contiguous()
            gate, up = project(layer.norm_mlp(x), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            x = x + project(silu(gate) * up, layer.down, layer.down_bias).contiguous()
        return self.norm(x)


_HANDFUL = range(7, 129)  # of tokens, for which a CPU multiplies faster the other way round


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` of x `[..., in]`: `[..., out]`, not always contiguous.

    For a handful of tokens MKL takes several times as long as for one, though it reads the same weights. From seven tokens on,
    and where weights are large, `weight @ x^T` takes down to 0.4 of that.
    """
    tokens = x.numel() // x.shape[-1]
    large = weight.shape[1] >= 512 and weight.numel() >= 2**19
    if not (large and tokens in _HANDFUL and x.device.type == "cpu" and x.dtype == torch.float32):
        return linear(x, weight, bias)
    found = torch.mm(weight, x.reshape(tokens, -1).t())
    if bias is not None:
        found += bias[:, None]
    return found.t().reshape(*x.shape[:-1], -1)


def _for_groups(masks: list[Tensor | None], group: int) -> list[Tensor | None]:
    """The masks as `_attend` reads them: `group` query heads stand behind each other in the place of positions."""
    repeated = {id(m): m if m is None or group == 1 or m.shape[2] == 1 else m.repeat(1, 1, group, 1) for m in masks}
    return [repeated[id(mask)] for mask in masks]


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, layer: LeanLayer) -> Tensor:
    """Attention of queries `[rows, new, heads, dim]`: `[rows, new, heads * dim]`.

    The queries of a group that share a key head are read as so many more positions, so that no key is repeated.
    """
    rows, new, heads, dim = queries.shape
    group = layer.group
    grouped = queries.view(rows, new, layer.kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(rows, layer.kv_heads, group * new, dim)
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=layer.scale)
    attended = attended.view(rows, layer.kv_heads, group, new, dim).permute(0, 3, 1, 2, 4)
    return attended.reshape(rows, new, heads * dim)


def _is_plain(module: Any) -> bool:
    hooked = "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks
    return type(module) is Linear and type(module.weight) is Parameter and not hooked


def _fused(*modules: Any) -> tuple[Tensor, Tensor | None]:
    """One weight and one bias for projections of one input; the modules keep views of them."""
    weight = torch.cat([module.weight for module in modules])
    bias = None if modules[0].bias is None else torch.cat([module.bias for module in modules])
    start = 0
    for module in modules:
        end = start + len(module.weight)
        module.weight = Parameter(weight[start:end], requires_grad=False)
        if bias is not None:
            module.bias = Parameter(bias[start:end], requires_grad=False)
        start = end
    return weight, bias
