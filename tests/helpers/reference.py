"""An independent replay: plain passes without a cache over a text as it is written, scores, gate and race in numpy.

Position by position it says which token stands there after those before it, and who writes it. Where every token of a text is the
one that its replay gives, the text is what a loop of one pass a token would write. Shares nothing with the package but the
documented definition of the words and of the race, which is written out again here.
"""

import hashlib
import math
import re
from dataclasses import astuple

import numpy as np
import torch
from scipy.special import log_softmax


def word(seed, prompt, sample, position, stream="token"):
    request = hashlib.blake2b(b"".join(int(t).to_bytes(8, "little") for t in prompt), digest_size=16).digest()
    digest = hashlib.blake2b(f"{stream}\0{seed}\0{sample}\0".encode() + request, digest_size=16).digest()
    key = np.array([int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")], dtype=np.uint64)
    return int(np.random.Philox(key=key).random_raw(position + 1)[position])


def chance(seed, prompt, sample, position):
    return (word(seed, prompt, sample, position, "takeover") >> 11) / 2**53


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
    """(tokens, taken_over, scores) that stand at each position after the tokens that a pair has `written` before it."""
    name, gate, sampling = policy.name, policy.gate, astuple(request.sampling)
    score = policy.scorer.name if policy.scorer else "ce"
    of_request = seed, request.prompt, request.sample
    roles = (name, name) if name in ("base", "guide") else (policy.host, policy.donor)
    passes = {role: all_logits(pair.member(role).model, request.prompt, written, pair.vocab_size) for role in {*roles}}
    tokens, taken, scores, left = [], [], [], 0
    for t, (h, d) in enumerate(zip(*(passes[role] for role in roles), strict=True)):
        w = word(*of_request, t)
        x = draw(h, w, *sampling) if score in ("surprise", "log_ratio") or name == "ensemble" else None
        s = score_of(score, h, d, x)
        if gate is not None:
            recent = scores[max(0, t - gate.window) :]
            fire = s > gate.tau and (t == 0 or gate.kappa == 0 or s > gate.kappa * (sum(recent) / len(recent)))
            fire = fire and chance(*of_request, t) < getattr(policy, "chance", 1)
            if name == "segment":  # `left`: tokens that the donor still writes
                left = left or ((math.inf if policy.length == "sentence" else policy.length) if fire else 0)
                fire = left > 0
        elif name == "lossy":
            fire = chance(*of_request, t) < 1 - policy.leniency * math.exp(-s)
            if policy.residual and fire:
                with np.errstate(divide="ignore"):
                    d = np.log(np.maximum(np.exp(log_softmax(d)) - np.exp(log_softmax(h)), 0))
        elif name == "ensemble":
            fire, d = True, (1 - policy.weight) * log_softmax(h) + policy.weight * log_softmax(d)
        elif name == "random":
            fire = chance(*of_request, t) < policy.rate
        elif name == "early":
            fire = t < policy.early_tokens
        else:
            fire = name == "guide"
        if fire and score in ("surprise", "log_ratio"):  # which look at x
            w ^= 0x5851F42D4C957F2D
        token = draw(d if fire else h, w, *sampling)
        if name == "ensemble":
            fire = token != x
        left = max(0, left - 1)
        if left == math.inf and re.search(r"[.!?]|\n", pair.tokenizer.decode([token])):
            left = 0
        tokens.append(token)
        taken.append(bool(fire))
        scores.append(s)
        if token in pair.eos_ids:
            break
    else:
        assert len(tokens) == request.max_new_tokens, "the text ends, but neither at an end token nor at its limit"
    return tokens, taken, scores
