"""Policies, samplings and random checkpoints that tests of several folders share."""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.forward.forward_pass import ForwardPass
from lm_eval_takeover.lab.methods import Ensemble, Lossy, Segment
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import ALONE, Disagreement, Early, Entropy, Random
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.pair.member import Member

ROOT = Path(__file__).parent.parent.parent
SHARED = ROOT.parent / "shared"

SAMPLED = Sampling(temperature=0.6, top_p=0.95)
GREEDY = Sampling()
# Greedy, plain, by top-p, by top-k and by both; then edges, and min-p.
SAMPLINGS = [
    Sampling(), Sampling(1.0), Sampling(0.6, 0.95), Sampling(0.3, 1.0, 1), Sampling(2.0, 0.5, 5), Sampling(0.7, 1.0, 5),
    Sampling(1e-6, 0.9), Sampling(1.0, 0.1), Sampling(1.0, 1e-9), Sampling(2.0, 0.99, 97), Sampling(1.0, 0.9, 5000),
    Sampling(1.5, min_p=0.1), Sampling(0.8, 0.9, min_p=0.3), Sampling(1.3, 0.95, 20, 0.05), Sampling(1.0, min_p=1.0),
]  # fmt: skip
POLICIES = {
    "disagreement": Disagreement(score="ce", gate=Gate(1.5, 2.0)),
    "rkl": Disagreement(score="rkl", gate=Gate(1.0, 3.0, 4)),
    "js": Disagreement(score="js", gate=Gate(0.1, 0.0)),
    "entropy": Entropy(gate=Gate(0.7, 1.5, 25)),
    "random": Random(rate=0.2),
    "early": Early(early_tokens=9),
    "base": ALONE["base"](),
    "guide": ALONE["guide"](),
    "never": Disagreement(gate=Gate(1e9)),
    "always": Disagreement(gate=Gate(0.0)),
}
# Methods of other papers, with budget parameters that let both models of the demo pair write.
METHODS = {
    "margin": Disagreement(score="margin", gate=Gate(0.5, 1.5)),
    "confidence": Disagreement(score="confidence", gate=Gate(0.4)),
    "top1": Disagreement(score="top1", gate=Gate(0.0), chance=0.5),
    "surprise": Disagreement(score="surprise", gate=Gate(1.5, 2.0)),
    "log_ratio": Disagreement(score="log_ratio", gate=Gate(-0.02)),
    "lossy": Lossy(leniency=0.9),
    "lossy from the residual": Lossy(leniency=1.0, residual=True),
    "segment": Segment(gate=Gate(1.5, 2.0), length=5),
    "segment of entropy": Segment(score="entropy", gate=Gate(0.7, 1.5), length=3),
    "segment of surprise": Segment(score="surprise", gate=Gate(1.5), length=2),
    "segment to the end of a sentence": Segment(gate=Gate(1.5), length="sentence"),
    "ensemble": Ensemble(weight=0.4),
}


def texts(generations):
    """Tokens by request, of what an engine yields or a dictionary of it."""
    return {i: generation.tokens for i, generation in dict(generations).items()}


def look_before_passes(monkeypatch, look):
    """Call `look(role, ids, reads_prompt)` before every pass, by blocks and by steps."""
    passes, logits = ForwardPass.__call__, Member.compute_logits

    def by_blocks(self, cache, slots, lengths, ids, vocab, *rest):
        look(self.member.role, ids, not vocab)
        return passes(self, cache, slots, lengths, ids, vocab, *rest)

    def by_steps(self, ids, *rest, cache=None, **named):
        look(self.role, ids, cache is None or not cache.get_seq_length())
        return logits(self, ids, *rest, cache=cache, **named)

    monkeypatch.setattr(ForwardPass, "__call__", by_blocks)
    monkeypatch.setattr(Member, "compute_logits", by_steps)


def fail_before_passes(monkeypatch, error, when):
    """Raise an error, or one of a class, before each pass of which `when(role, ids, reads_prompt)` says so."""

    def look(*given):
        if when(*given):
            raise error

    look_before_passes(monkeypatch, look)


def save_random_model(folder, *, vocab_size, seed, hidden_size=32, layers=2, kind="qwen3", tokenizer=None, **options):
    """A checkpoint with random weights, wide enough apart that its distributions are neither flat nor certain."""
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(DEMO["base"])
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    torch.manual_seed(seed)
    settings = {
        "vocab_size": vocab_size, "hidden_size": hidden_size, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "tie_word_embeddings": True,
        "max_position_embeddings": 512, "initializer_range": 0.25, "bos_token_id": None, "eos_token_id": ends,
        "pad_token_id": ends[1],
    }  # fmt: skip
    if not hasattr(AutoConfig.for_model(kind), "max_position_embeddings"):  # mamba, bloom: no length, or by another name
        del settings["max_position_embeddings"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(settings | options)), dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_small_pair(folder):
    """Folders of a pair of two layers each that agrees at most tokens, as a base and its guide do. Each gate of POLICIES fires at
    some tokens. A pass takes a third of the time of the bundled pair's."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    options = sizes | {"kind": "llama", "tie_word_embeddings": False}
    base = save_random_model(folder / "base", vocab_size=512, seed=1, layers=2, **options)
    model, generator = AutoModelForCausalLM.from_pretrained(base), torch.Generator().manual_seed(5)
    with torch.no_grad():
        model.model.norm.weight.mul_(6)  # peaked distributions
        model.save_pretrained(base)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.add_(0.1 * weight.std() * torch.randn(weight.shape, generator=generator))
    guide = folder / "guide"
    model.save_pretrained(guide)
    AutoTokenizer.from_pretrained(base).save_pretrained(guide)
    return {"base": base, "guide": guide}


def edit(path, change):
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def save_struck_guide(folder, token):
    """The bundled guide with an embedding of this token that is NaN."""
    guide = Member("guide", str(DEMO["guide"]))
    guide.config.tie_word_embeddings = False
    model = guide.model
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    with torch.no_grad():
        model.model.embed_tokens.weight[token] = torch.nan
    model.save_pretrained(folder)
    guide.tokenizer.save_pretrained(folder)
    return Member("guide", str(folder))


def save_adapter(base, folder, seed):
    """Random LoRA weights of two projections of each layer."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder


class TableTokenizer:
    """Token `i` is the i-th text."""

    def __init__(self, texts):
        self.texts = texts

    def decode(self, tokens, **_):
        return "".join(self.texts[token] for token in tokens)

    def convert_ids_to_tokens(self, token):
        return self.texts[token]
