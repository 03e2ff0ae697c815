"""A decoder's forward pass in as few operations as it takes, for the architectures that most pairs have.

A small model's token costs more in Python and in small kernels than in arithmetic: transformers' own pass takes about sixty
operations per layer, this one about twenty. Projections that read the same input are one matrix (the modules keep views of
it, so that no weight is held twice), queries and keys are rotated together, and grouped queries share their keys without a copy.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Parameter
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from lm_eval_takeover.ragged_cache import RaggedCache

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_ROPE = ("default", "linear", "llama3", "yarn")  # rotations that depend on the position alone


class LeanLayer:
    """The weights of one decoder layer."""

    def __init__(self, layer: Any, config: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = int(attention.head_dim)
        self.scale = float(attention.scaling)
        self.norm_in, self.norm_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        self.qkv, self.qkv_bias = _fused(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.out_bias = attention.o_proj.weight, attention.o_proj.bias
        self.gate_up, self.gate_up_bias = _fused(mlp.gate_proj, mlp.up_proj)
        self.down, self.down_bias = mlp.down_proj.weight, mlp.down_proj.bias
        self.head_norm: Tensor | None = None
        if hasattr(attention, "q_norm"):
            self.head_norm = torch.cat(
                [
                    attention.q_norm.weight.expand(self.heads, -1),
                    attention.k_norm.weight.expand(self.kv_heads, -1),
                ]
            )


class LeanDecoder:
    """`hidden(ids, positions, mask, cache)` of a model that `supports` accepts."""

    def __init__(self, model: Any) -> None:
        config, inner = model.config.get_text_config(), model.model
        self.eps = float(config.rms_norm_eps)
        self.embed, self.norm, self.head = inner.embed_tokens.weight, inner.norm.weight, model.lm_head.weight
        # The fused weights stay ordinary ones, for whoever else uses the model.
        with torch.inference_mode(False), torch.no_grad():
            self.layers = [LeanLayer(layer, config) for layer in inner.layers]
        self._rotary = inner.rotary_emb
        self._rotation: tuple[Tensor, Tensor] | None = None

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

    def rotation(self, positions: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin of positions `[rows, new]`: `[rows, new, 1, head_dim]` each, from a table of `columns` or more."""
        if self._rotation is None or len(self._rotation[0]) < columns:
            cos, sin = self._rotary(self.embed, torch.arange(max(2 * columns, 1024), device=positions.device)[None])
            half = sin.shape[-1] // 2
            signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
            self._rotation = (cos[0][:, None].contiguous(), signed[:, None].contiguous())
        return self._rotation[0][positions], self._rotation[1][positions]

    def hidden(self, ids: Tensor, positions: Tensor, masks: list[Tensor | None], cache: RaggedCache) -> Tensor:
        """Last hidden states `[rows, new, hidden]`. One mask `[rows, 1, new, columns]` per layer, None to see everything."""
        rows, new = ids.shape
        x = self.embed[ids]
        cos, sin = self.rotation(positions, cache.plan.columns)
        for layer, mask, stored in zip(self.layers, masks, cache.layers, strict=True):
            dim, both = layer.head_dim, layer.heads + layer.kv_heads
            mixed = linear(rms_norm(x, x.shape[-1:], layer.norm_in, self.eps), layer.qkv, layer.qkv_bias)
            mixed = mixed.view(rows, new, both + layer.kv_heads, dim)
            turned, values = mixed[:, :, :both], mixed[:, :, both:]
            if layer.head_norm is not None:
                turned = rms_norm(turned, (dim,), None, self.eps) * layer.head_norm
            turned = turned * cos + turned.roll(dim // 2, -1) * sin
            queries = turned[:, :, : layer.heads]
            keys, values = stored.update(turned[:, :, layer.heads :].transpose(1, 2), values.transpose(1, 2))
            attended = _attend(queries, keys, values, mask, layer)
            x = x + linear(attended, layer.out, layer.out_bias)
            gate, up = linear(
                rms_norm(x, x.shape[-1:], layer.norm_mlp, self.eps), layer.gate_up, layer.gate_up_bias
            ).chunk(2, -1)
            x = x + linear(silu(gate) * up, layer.down, layer.down_bias)
        return rms_norm(x, x.shape[-1:], self.norm, self.eps)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, layer: LeanLayer) -> Tensor:
    """Attention of queries `[rows, new, heads, dim]`: `[rows, new, heads * dim]`.

    The queries of a group that share a key head are read as so many more positions, so that no key is repeated.
    """
    rows, new, heads, dim = queries.shape
    group = heads // layer.kv_heads
    grouped = queries.view(rows, new, layer.kv_heads, group, dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(rows, layer.kv_heads, group * new, dim)
    if mask is not None and group > 1:
        mask = mask.expand(rows, group, new, mask.shape[-1]).reshape(rows, 1, group * new, mask.shape[-1])
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
