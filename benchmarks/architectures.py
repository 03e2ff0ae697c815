"""Every architecture that transformers can load, as base and as guide: is what each engine writes what plain passes write?

    python benchmarks/architectures.py [gemma4-e2b falcon_h1 ...]

Models are tiny and of random weights in float32, beside a Llama as tiny; prompts of three lengths, two samples each, batches of
1, 3 and 8, greedy and sampled. The references are lm-eval's `hf`, and passes that read the whole text again for every token.
Prints a Markdown table with a row for each, which docs/architectures.md sums up; the exit status is 1 where anything differs.
"""

import argparse
import logging
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.commands.calibrate.measurement import calibrate
from lm_eval_takeover.commands.calibrate.prompts import Prompts
from lm_eval_takeover.commands.calibrate.rollouts import Setup
from lm_eval_takeover.decoding import engine, lockstep
from lm_eval_takeover.decoding.engine import TransformersBackend
from lm_eval_takeover.decoding.rows import text_of
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.demo import DEMO, calibration_prompts
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.self_check import Reading, choose_reading, verify_pass
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import BaseAlone, Disagreement
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

BATCHES = (1, 3, 8)
NEW = 8  # tokens of a text
PROMPT_LENGTHS = (9, 4, 21)
COMMON: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 64, "tie_word_embeddings": True, "max_position_embeddings": 512, "initializer_range": 0.25,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "index_head_dim": 8, "index_n_heads": 2,
}  # fmt: skip
STATE: dict[str, Any] = {
    "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_chunk_size": 8,
    "chunk_size": 8,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
WINDOW = {"sliding_window": 12}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
HYBRID = {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3}
NO_HEADS = {"head_dim": None}  # set by the configuration itself

VISION: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "intermediate_size": 16, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
GEMMA4: dict[str, Any] = WINDOW | {
    "num_hidden_layers": 6, "layer_types": 2 * LAYERS, "global_head_dim": 16, "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}  # fmt: skip
UNIFIED = GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "use_bidirectional_attention": "vision"}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
ROPE35 = {
    "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
    "mrope_section": [1, 0, 0],
}  # fmt: skip

# Checkpoints that read images too, as these families publish them: their model type, and what text and vision need.
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3-4b": ("gemma3", WINDOW | {"num_hidden_layers": 6}, {}),
    "gemma4-e2b": (
        "gemma4",
        GEMMA4 | {"num_key_value_heads": 1, "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 8},
        {},
    ),
    "gemma4-31b": ("gemma4", UNIFIED, {}),
    "gemma4-26b-a4b": ("gemma4", UNIFIED | EXPERTS | {"enable_moe_block": True, "top_k_experts": 2}, {}),
    "ministral3": ("mistral3", {"model_type": "ministral3", "rope_parameters": YARN}, {"model_type": "pixtral"}),
    "qwen3.5": ("qwen3_5", DELTA | {"num_hidden_layers": 4, "rope_parameters": ROPE35}, {"out_hidden_size": 32, "depth": 1}),
}
# What an architecture needs beside COMMON.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": WINDOW, "ministral": WINDOW, "qwen2": {}, "qwen3": {}, "phi": {}, "phi3": {}, "gemma": {},
    "gemma2": WINDOW, "gemma3_text": WINDOW, "olmo": {}, "olmo2": {}, "olmo3": WINDOW, "cohere": {}, "cohere2": WINDOW,
    "granite": {}, "glm": {}, "glm4": {}, "smollm3": {}, "exaone4": WINDOW, "stablelm": {}, "starcoder2": {}, "nemotron": {},
    "persimmon": {}, "ernie4_5": {}, "hunyuan_v1_dense": {}, "seed_oss": {}, "apertus": {}, "arcee": {}, "bitnet": {},
    "diffllama": {}, "doge": {}, "helium": {}, "nanochat": {}, "jais2": {}, "minicpm3": LATENT,
    "gpt2": {}, "gpt_bigcode": {}, "gpt_neox": {}, "opt": {}, "xglm": {}, "biogpt": {}, "bloom": {}, "mpt": {}, "ctrl": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 12},
    "falcon": NO_HEADS, "gptj": {"rotary_dim": 4}, "codegen": {"rotary_dim": 4}, "openai-gpt": {},
    "mixtral": EXPERTS, "qwen2_moe": EXPERTS, "qwen3_moe": EXPERTS, "olmoe": EXPERTS, "phimoe": EXPERTS, "granitemoe": EXPERTS,
    "granitemoeshared": EXPERTS, "jetmoe": EXPERTS, "glm4_moe": EXPERTS, "ernie4_5_moe": EXPERTS, "minimax_m2": EXPERTS,
    "gpt_oss": EXPERTS | WINDOW, "flex_olmo": EXPERTS, "hunyuan_v1_moe": EXPERTS,
    "llama4_text": EXPERTS | {"attention_chunk_size": 16}, "deepseek_v2": EXPERTS | LATENT, "deepseek_v3": EXPERTS | LATENT,
    "glm4_moe_lite": EXPERTS | LATENT, "deepseek_v32": EXPERTS | LATENT, "longcat_flash": EXPERTS | LATENT,
    "deepseek_v4": EXPERTS | LATENT | WINDOW
    | {"compress_rates": {"heavily_compressed_attention": 8, "compressed_sparse_attention": 4}},
    "mamba": {"state_size": 8}, "falcon_mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 8},
    "falcon_h1": STATE | {"mamba_d_ssm": 64}, "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "qwen3_next": EXPERTS | DELTA | MIXED, "qwen3_5_text": DELTA | MIXED, "qwen3_5_moe_text": EXPERTS | DELTA | MIXED,
    "olmo_hybrid": DELTA | MIXED, "kimi_linear": EXPERTS | LATENT | MIXED | {"linear_head_dim": 8, "linear_num_heads": 4},
    "granitemoehybrid": EXPERTS | STATE | MIXED | {"shared_intermediate_size": 32}, "bamba": STATE | {"attn_layer_indices": [1]},
    "jamba": EXPERTS | {"mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba": HYBRID | {"n_mamba_heads": 2, "mamba_d_state": 8, "num_key_value_heads": 4, "head_dim": 16},
    "zamba2": HYBRID | {"n_mamba_heads": 4, "mamba_d_state": 8, "chunk_size": 8, "num_key_value_heads": 4, "head_dim": 16},
    "nemotron_h": EXPERTS | {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": 4, "ssm_state_size": 8,
        "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 8, "moe_shared_expert_intermediate_size": 32,
    },
    "zaya": EXPERTS | {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "attention_window_size": 16, "lru_width": 32},
    "minimax": EXPERTS | MIXED | {"block_size": 8}, "rwkv": {}, "xlstm": {"hidden_size": 128, "num_heads": 2},
    "bert": {"is_decoder": False},
    # Those of transformers 5.24, left out where the installed version has no class for them.
    "kolibri1": EXPERTS | WINDOW, "flint": EXPERTS | WINDOW | {"mlp_only_layers": [0]},
    "beam": EXPERTS | WINDOW | {"n_group": 1, "topk_group": 1}, "apertus1p5_text": {}, "exaone": {}, "internlm3": {},
    "iquestcoder": {},
    "lfm3": WINDOW | {"conv_L_cache": 4},
    "dory": WINDOW | {"num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "bailing_hybrid": EXPERTS | LATENT | DELTA
    | {"layer_group_size": 2, "linear_head_dim": 8, "linear_num_heads": 4, "num_experts_per_token": 2},
    "inkling2_text": EXPERTS | {"sliding_window_size": 12}, "dots3_note_text": EXPERTS | LATENT | WINDOW,
}  # fmt: skip

FLAT = ("rwkv",)  # whose own initialization leaves all tokens alike, so that rounding decides


@dataclass
class Row:
    """What was found of one architecture; `differences` name what was not as plain passes have it."""

    name: str
    hf: str = ""
    reading: str = ""
    blocks: str = ""
    milliseconds: float = 0.0  # of the self-check, both engines
    refusal: str = ""
    compared: int = 0  # texts
    differences: list[str] = field(default_factory=list)

    def expect(self, what: str, made: Sequence[Any], expected: Sequence[Any]) -> int:
        """How many are equal."""
        equal = sum(bool(one == other) for one, other in zip(made, expected, strict=True))
        self.compared += len(expected)
        if equal < len(expected):
            self.differences.append(f"{what}: {len(expected) - equal} of {len(expected)}")
        return equal

    @property
    def verdict(self) -> str:
        if self.refusal:
            return "refused"
        return f"wrong: {'; '.join(self.differences)}" if self.differences else "equal"

    def __str__(self) -> str:
        cells = (
            self.name,
            self.hf,
            self.reading,
            self.blocks,
            self.refusal or self.verdict,
            f"{self.milliseconds:.0f}",
        )
        return f"|`{'|'.join([cells[0] + '`', *cells[1:]])}|"


HEADER = """\
|architecture|`hf`, greedy|how lockstep reads|blocks|texts, log-likelihoods, calibration|self-check, ms|
|---|--:|---|---|---|--:|"""


def save_model(folder: Path, kind: str, seed: int = 1) -> Path:
    """A checkpoint of this architecture or family with the demo pair's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    model_type, own, vision = FAMILIES.get(kind) or (kind, ARCHITECTURES[kind], None)
    sizes = ("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size")
    given = COMMON | dict.fromkeys(sizes, len(tokenizer)) | own
    settings = {name: value for name, value in given.items() if value is not None or "token" in name}
    # Some have no length, or under another name.
    if not hasattr(AutoConfig.for_model(model_type).get_text_config(), "max_position_embeddings"):
        settings.pop("max_position_embeddings")
    if vision is not None:
        settings = {"text_config": settings, "vision_config": VISION | vision, "tie_word_embeddings": True}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **settings)
    loader = AutoModelForCausalLM if vision is None else AutoModelForImageTextToText
    model = loader.from_config(config, dtype=torch.float32)
    for weight in model.parameters():
        if kind in FLAT or (kind in FAMILIES and weight.ndim > 1):
            torch.nn.init.normal_(weight, std=COMMON["initializer_range"])
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def plain_passes(pair: Pair) -> Iterator[None]:
    """Lockstep that reads every text anew and alone while this lasts."""
    checks = [member.self_check for member in pair.members]
    try:
        for member in pair.members:
            member.self_check = _Plain()
        yield
    finally:
        for member, check in zip(pair.members, checks, strict=True):
            member.self_check = check


class _Plain:
    reading = Reading(padded=False, cached=False, chunked=False)
    blocks_fault = "the reference reads no blocks"


def make_requests(pair: Pair, sampling: Sampling) -> list[Request]:
    """Two samples of prompts of three lengths."""
    text = pair.encode(calibration_prompts()[0])
    prompts = [tuple(text[length : 2 * length]) for length in PROMPT_LENGTHS]
    return [Request(prompt, sample, NEW, sampling) for prompt in prompts for sample in range(2)]


def write_lockstep(pair: Pair, policy: Policy, requests: Sequence[Request], batch_size: int) -> list[list[int]]:
    made = dict(lockstep.generate(pair, policy, requests, batch_size=batch_size))
    return [made[i].tokens for i in range(len(requests))]


def write(pair: Pair, policy: Policy, requests: Sequence[Request], batch_size: int) -> list[list[int]]:
    made = dict(engine.generate(pair, policy, requests, batch_size=batch_size))
    return [made[i].tokens for i in range(len(requests))]


class Stock(HFLM):  # type: ignore[misc]
    """lm-eval's `hf`, also for checkpoints that transformers has only with their images."""

    def __init__(self, member: Member) -> None:
        self.AUTO_MODEL_CLASS = member.loader
        super().__init__(pretrained=member.path, device="cpu", dtype="float32", batch_size=1, max_length=member.max_length)


def check_hf(row: Row, member: Member) -> None:
    """`policy=base` against the texts of lm-eval's `hf`, greedy, one prompt at a time."""
    pair = Pair(member, None)
    prompts = [calibration_prompts()[0][:length] for length in (30, 11, 70)]
    settings = {"do_sample": False, "temperature": 0.0, "max_gen_toks": NEW, "until": []}
    asked = [Instance("generate_until", {}, (prompt, settings), 0, metadata=("any", i, 1)) for i, prompt in enumerate(prompts)]
    expected = [text for text in Stock(member).generate_until(asked, disable_tqdm=True) for _ in range(2)]
    requests = [Request(tuple(pair.encode(prompt)), sample, NEW) for prompt in prompts for sample in range(2)]
    equal = 0
    for batch in BATCHES:
        made = [text_of(member.tokenizer, tokens, ()) for tokens in write(pair, BaseAlone(), requests, batch)]
        equal += row.expect(f"hf, batch {batch}", made, expected)
    row.hf = f"{equal}/{len(BATCHES) * len(requests)}"


def check_texts(row: Row, role: str, pair: Pair) -> None:
    """Lockstep and what `block_size=auto` takes, against plain passes; half of the tokens or so are takeovers."""
    for name, sampling in (("greedy", Sampling()), ("sampled", Sampling(1.0))):
        requests = make_requests(pair, sampling)
        with plain_passes(pair):
            scores = [s for _, one in lockstep.generate(pair, Disagreement(gate=Gate(1e9)), requests[:1]) for s in one.scores]
            policy = Disagreement(gate=Gate(middle(scores)))
            expected = write_lockstep(pair, policy, requests, 2)
        for batch in BATCHES:
            row.expect(f"{role}, {name}, lockstep, batch {batch}", write_lockstep(pair, policy, requests, batch), expected)
            if not row.blocks:
                row.expect(f"{role}, {name}, blocks, batch {batch}", write(pair, policy, requests, batch), expected)


def middle(scores: Sequence[float]) -> float:
    """A threshold that none of them is near."""
    ordered = sorted(scores)
    gaps = [(high - low, (high + low) / 2) for low, high in pairwise(ordered[len(ordered) // 4 : -len(ordered) // 4])]
    return max(gaps)[1]


def check_log_likelihoods(row: Row, pair: Pair, policy: Policy) -> None:
    """Of given texts in one padded batch, against plain passes over each: to 4 digits."""
    requests = make_requests(pair, Sampling())[::2]
    prompts = [request.prompt[:4] for request in requests]
    texts = [request.prompt[3:] for request in requests]
    made = force(pair, policy, prompts, texts)
    member = pair.member("base")
    expected = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([[*prompt, *text]])
        logits = member.compute_logits(ids, torch.ones_like(ids), keep=ids.shape[1])[0, -len(text) - 1 : -1, : pair.vocab_size]
        expected.append(float(logits.float().log_softmax(-1).gather(-1, torch.tensor(text)[:, None]).sum()))
    row.expect(
        "log-likelihoods",
        [round(float(one.log_probs.sum()), 2) for one in made],
        [round(value, 2) for value in expected],
    )


def check_calibration(row: Row, pair: Pair) -> None:
    """The mean score of a calibration in one batch, against one by one and plainly."""
    texts = tuple(text[:length] for text, length in zip(calibration_prompts(), (60, 25, 90), strict=False))
    prompts = Prompts(texts, (), {"indices": [0, 1, 2]})
    backend = TransformersBackend(ModelArguments(), pair, Disagreement())
    setup = Setup(backend=backend, prompts=prompts, max_gen_toks=NEW, sampling=Sampling(1.0), batch_size=3)
    with plain_passes(pair):
        expected = calibrate(replace(setup, batch_size=1))
    made = calibrate(setup)
    row.expect(
        "calibrate",
        [made.tokens, f"{made.score('ce').mean:.3f}"],
        [expected.tokens, f"{expected.score('ce').mean:.3f}"],
    )


def check_architecture(kind: str, folder: Path) -> Row:
    """All of it, of one architecture."""
    row = Row(kind)
    partner = save_model(folder / "partner", "llama", seed=2)
    this = save_model(folder / "this", kind)
    member = Member("base", str(this))
    started = time.perf_counter()
    try:
        reading = choose_reading(member)
    except ArgumentError as error:
        row.refusal = re.sub(r"^base='[^']*' ", "", str(error))
        row.hf = row.reading = row.blocks = "-"
        return row
    try:
        verify_pass(member, max(BATCHES))
    except ArgumentError as error:
        row.blocks = re.sub(r"^base='[^']*': |; use block_size=1$", "", str(error))
    row.milliseconds = 1000 * (time.perf_counter() - started)
    row.reading = describe(reading)
    with torch.inference_mode():
        check_hf(row, member)
        as_base = Pair(member, Member("guide", str(partner)))
        check_texts(row, "base", as_base)
        check_texts(row, "guide", Pair(Member("base", str(partner)), Member("guide", str(this))))
        check_log_likelihoods(row, as_base, BaseAlone())
        check_calibration(row, as_base)
    row.blocks = row.blocks or "yes"
    return row


def _check_or_tell(kind: str, folder: Path) -> Row:
    """A traceback is as wrong as another text, and no reason to leave out the other architectures."""
    try:
        return check_architecture(kind, folder)
    except Exception as error:
        return Row(kind, differences=[f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"])


def describe(reading: Reading) -> str:
    if not reading.cached:
        return "whole text again"
    return "cache" if reading.padded else "cache, lengths apart"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=[*FAMILIES, *(kind for kind in ARCHITECTURES if kind in CONFIG_MAPPING)])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the table says it
    disable_progress_bar()
    print(HEADER)
    rows = []
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(_check_or_tell(kind, Path(folder)))
        print(rows[-1], flush=True)
    return int(any(row.differences for row in rows))


if __name__ == "__main__":
    sys.exit(main())
