"""An independent replay: plain passes without a cache over a text as it is written, scores, gate and race in numpy.

Position by position it says which token stands there after those before it, and who writes it. Where every token of a text is the
one that its replay gives, the text is what a loop of one pass a token would write. Shares nothing with the package but the
documented definition of the words and of the race, which is written out again here.
"""

import hashlib
import math
import re
from dataclasses import asdict

import numpy as np
import torch


def word(seed, prompt, sample, position, stream="token"):
    request = hashlib.blake2b(b"".join(int(t).to_bytes(8, "little") for t in prompt), digest_size=16).digest()
    digest = hashlib.blake2b(f"{stream}\0{seed}\0{sample}\0".encode() + request, digest_size=16).digest()
    key = np.array([int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")], dtype=np.uint64)
    return int(np.random.Philox(key=key).random_raw(position + 1)[position])


def chance(seed, prompt, sample, position):
    return (word(seed, prompt, sample, position, "takeover") >> 11) / 2**53


@torch.inference_mode()
def next_logits(model, ids, vocab):
    return model(input_ids=torch.tensor([ids])).logits[0, -1, :vocab].double().numpy()


def log_softmax(x):
    x = x - x.max()
    return x - math.log(np.exp(x).sum())


@torch.inference_mode()
def all_logits(model, prompt, tokens, vocab):
    """What predicts each of `tokens`: `[tokens, vocab]`."""
    logits = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits
    return logits[0, len(prompt) - 1 : -1, :vocab].double().numpy()


def score_of(name, host, donor, x=None):
    p, q = log_softmax(host), log_softmax(donor)
    if name in ("margin", "confidence"):
        first, second = sorted(np.exp(p))[:-3:-1]
        return float(1 - first + (second if name == "margin" else 0))
    if name in ("top1", "surprise", "log_ratio"):
        return float({"top1": p.argmax() != q.argmax(), "surprise": -q[x], "log_ratio": p[x] - q[x]}[name])
    entropy, ce = -(np.exp(p) * p).sum(), -(np.exp(p) * q).sum()
    if name == "js":
        m = np.logaddexp(p, q) - math.log(2)
        return float((np.exp(p) * (p - m)).sum() + (np.exp(q) * (q - m)).sum()) / 2
    return {"ce": ce, "rkl": ce - entropy, "entropy": entropy}[name]


def fires_along(scores, tau, kappa, window):
    """Equation (5) in plain Python, at each of these scores."""
    fired = []
    for t, s in enumerate(scores):
        recent = scores[max(0, t - window) : t]
        fired.append(s > tau and (t == 0 or kappa == 0 or s > kappa * (math.fsum(recent) / len(recent))))
    return fired


def fmix32(x):
    x = ((x ^ x >> 16) * 0x85EBCA6B) % 2**32
    x = ((x ^ x >> 13) * 0xC2B2AE35) % 2**32
    return x ^ x >> 16


def draw(logits, w, temperature, top_p, top_k, min_p=0.0):
    """The race, token by token in Python's integers."""
    if temperature == 0:
        return int(logits.argmax())
    p = np.exp(log_softmax(logits / temperature))
    kept = sorted(range(len(p)), key=lambda v: (-p[v], v))[: top_k or None]
    total, mass, nucleus, floor = sum(p[v] for v in kept), 0.0, [], min_p * p.max()
    for v in kept:
        if nucleus and mass >= top_p * total:
            break
        if p[v] >= floor:
            nucleus.append(v)
        mass += p[v]
    numbers = {v: (fmix32(fmix32((v * 0x9E3779B1 + w % 2**32) % 2**32) ^ (w >> 32)) + 0.5) / 2**32 for v in nucleus}
    return min(sorted(v for v in nucleus if p[v] > 0), key=lambda v: -math.log(numbers[v]) / p[v])


def replay_request(pair, policy, request, written, seed=0):
    """`replay` of what a pair wrote for a request."""
    gate, sampling = policy.gate, request.sampling
    names = ("leniency", "residual", "weight", "length", "rate")
    own = {name: getattr(policy, name) for name in names if hasattr(policy, name)}
    if own.get("length") == "sentence":
        ends = lambda token: re.search(r"[.!?]|\n", pair.tokenizer.decode([token])) is not None  # noqa: E731
        own |= {"length": math.inf, "ends_sentence": ends}
    if gate is not None:
        own |= {"tau": gate.tau, "kappa": gate.kappa, "window": gate.window}
    return replay(
        {member.role: member.model for member in pair.members}, pair.vocab_size, request.prompt, written,
        policy=policy.name, host=policy.host or "guide", donor=policy.donor or "base",
        score=policy.scorer.name if policy.scorer else "ce", early=getattr(policy, "early_tokens", 0),
        chance_of=getattr(policy, "chance", 1), seed=seed, sample=request.sample, max_new_tokens=request.max_new_tokens,
        eos=pair.eos_ids, **asdict(sampling), **own,
    )  # fmt: skip


def replay(
    models, vocab, prompt, written, *, policy, host="base", donor="guide", score="ce", tau=0.0, kappa=0.0, window=10, rate=0.0,
    early=0, chance_of=1.0, leniency=1.0, residual=False, weight=0.5, length=1, ends_sentence=None,
    seed=0, sample=0, max_new_tokens=100, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, eos=(),
):  # fmt: skip
    """(tokens, taken_over, scores) that stand at each position after the tokens that are `written` before it."""
    if policy in ("base", "guide"):
        host = donor = policy
    by_model = {role: all_logits(models[role], prompt, written, vocab) for role in {host, donor}}
    tokens, taken, scores, left = [], [], [], 0
    for t, (h, d) in enumerate(zip(by_model[host], by_model[donor], strict=True)):
        w = word(seed, prompt, sample, t)
        drafts = score in ("surprise", "log_ratio") or policy == "ensemble"
        x = draw(h, w, temperature, top_p, top_k, min_p) if drafts else None
        s = score_of(score, h, d, x)
        recent = scores[max(0, t - window) :]
        if policy in ("disagreement", "entropy", "segment"):
            fire = s > tau and (t == 0 or kappa == 0 or s > kappa * (sum(recent) / len(recent)))
            fire = fire and (chance_of == 1 or chance(seed, prompt, sample, t) < chance_of)
            if policy == "segment":  # `left`: tokens that the donor still writes
                left = left or (length if fire else 0)
                fire = left > 0
        elif policy == "lossy":
            fire = chance(seed, prompt, sample, t) < 1 - leniency * math.exp(-s)
            if residual and fire:
                with np.errstate(divide="ignore"):
                    d = np.log(np.maximum(np.exp(log_softmax(d)) - np.exp(log_softmax(h)), 0))
        elif policy == "ensemble":
            fire, d = True, (1 - weight) * log_softmax(h) + weight * log_softmax(d)
        elif policy == "random":
            fire = chance(seed, prompt, sample, t) < rate
        elif policy == "early":
            fire = t < early
        else:
            fire = policy == "guide"
        if fire and score in ("surprise", "log_ratio"):  # which look at x
            w ^= 0x5851F42D4C957F2D
        token = draw(d if fire else h, w, temperature, top_p, top_k, min_p)
        if policy == "ensemble" or residual:
            fire = fire and token != x
        left = max(0, left - 1) if ends_sentence is None else left if not ends_sentence(token) else 0
        tokens.append(token)
        taken.append(bool(fire))
        scores.append(s)
        if token in eos:
            break
    else:
        assert len(tokens) == max_new_tokens, "the text ends, but neither at an end token nor at its limit"
    return tokens, taken, scores
