"""Results folders as lm-eval 0.4.13 writes them, of runs that never were: given how many samples of each problem are correct."""

import hashlib
import json
from statistics import mean, stdev

import numpy as np

from lm_eval_takeover.runs.identity import describe_identity
from lm_eval_takeover.samples import list_ks, pass_at_k

TASK = "takeover_math500"
SIZES = {"takeover_amc23": 40, "takeover_aime24": 30, "takeover_gpqa_diamond_50": 50}  # problems by task
REASONS = (
    "acc_boxed", "acc_completed", "unboxed", "truncated", "no_answer", "restated", "unparsed", "timed_out", "unclosed_think",
)  # fmt: skip


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def score(correct, samples=8, shares=None):
    passes = {f"pass@{k}": pass_at_k(samples, correct, k) for k in list_ks(samples)}
    reasons = dict.fromkeys(REASONS, 0.0)
    majority = {f"maj@{samples}": float(correct > samples / 2)}
    return {"acc": correct / samples, **passes} | majority | reasons | (shares or {})


def takeover(policy="disagreement", *, base="acme/Small-Base", guide="acme/Large", seed=0, rate=0.05, **changed):
    """`config.takeover` of a guided-takeover run."""
    gate = policy == "disagreement"
    described = {
        "base": {"id": base, "revision": "b" * 40}, "guide": {"id": guide, "revision": "a" * 40}, "backend": "hf",
        "policy": policy, "direction": "forward", "score": "ce" if gate else None, "tau": 1.5 if gate else None,
        "kappa": 2.5 if gate else None, "window": 10 if gate else None, "spike_ratio": 0.03 if gate else None,
        "target_rate": None, "calibration": "mine.json" if gate else None, "kappa_rule": "threshold_to_mean",
        "rate": rate if policy in ("random", "early") else None, "early_tokens": None, "plugins": {}, "seed": seed,
        "block_size": "auto", "dtypes": {"base": "torch.bfloat16", "guide": "torch.bfloat16"}, "tokens": 1000,
        "base_passes": 1100, "guide_passes": 250, "run_dir": None, "attempts": 1, "seconds": 60.0,
    } | changed  # fmt: skip
    described.setdefault("realized_rate", {"base": 0.0, "guide": 1.0}.get(policy, rate))
    described.setdefault("takeovers", round(described["realized_rate"] * described["tokens"]))
    models = {role: {"model": "{id}@{revision}".format(**described[role])} for role in ("base", "guide")}
    method = {name: described[name] for name in ("score", "tau", "kappa", "window", "rate")}
    texts = {"backend": described["backend"], "models": models, "policy": {"name": policy, **method}, "seed": seed}
    return described | describe_identity(texts)


def sample_row(task, number, correct, samples=8, shares=None):
    metrics = score(correct, samples, shares)
    outcomes = [["1", "correct"]] * correct + [["2", "incorrect"]] * (samples - correct)
    return {
        "doc_id": number, "doc": {"problem": f"{task} {number}", "answer": "1", "family": number}, "target": "1",
        "arguments": {"gen_args_0": {"arg_0": f"{task} {number}", "arg_1": {"temperature": 0.6}}},
        "resps": [[answer for answer, _ in outcomes]], "filtered_resps": [outcomes], "filter": "all",
        "metrics": list(metrics), "doc_hash": digest(f"{task} {number}"), "prompt_hash": digest(f"p {task} {number}"),
        "target_hash": digest("1"), **metrics,
    }  # fmt: skip


def write_results(
    folder, correct, *, run=None, model="guided-takeover", model_args=None, logged=True, date="2026-01-01T00-00-00",
    decoding=None, config=None, samples=8, shares=None, verifier=None, **top,
):  # fmt: skip
    """Write `results_*.json` and, where `logged`, samples; `correct` has by task how many samples are correct, by problem.

    `shares` are more metrics, of which each problem has the same value.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for task, counts in correct.items():
        rows = [sample_row(task, number, count, samples, shares) for number, count in enumerate(counts)]
        metrics = list(score(0, samples, shares))
        means = {f"{metric},all": mean(row[metric] for row in rows) for metric in metrics}
        values = {metric: [row[metric] for row in rows] for metric in metrics}
        errors = {f"{m}_stderr,all": stdev(v) / len(v) ** 0.5 if len(v) > 1 else "N/A" for m, v in values.items()}
        results[task] = {"name": task, "alias": task, "sample_len": len(rows), **means, **errors}
        if logged:
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"samples_{task}_{date}.jsonl").write_text(lines)
    kwargs = {"until": [], "do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 16384}
    kwargs |= decoding or {}
    if run:
        names = ("tokens", "takeovers", "base_passes", "guide_passes", "realized_rate")
        told = {task: {name: run[name] for name in names} for task in correct}
        run = run | {"per_task": told | run.get("per_task", {})}
    content = {
        "results": results,
        "group_subtasks": {},
        "configs": {task: {"task": task, "doc_to_text": "{{problem}}", "repeats": samples, "generation_kwargs": kwargs,
                           **({"metadata": {"verifier": verifier}} if verifier else {})} for task in correct},
        "versions": dict.fromkeys(correct, 1.4),
        "n-shot": dict.fromkeys(correct, 0),
        "n-samples": {task: {"original": len(c), "effective": len(c)} for task, c in correct.items()},
        "config": {"model": model, "model_args": model_args or {}, **({"takeover": run} if run else {}), "limit": None}
        | (config or {}),
        "lm_eval_version": "0.4.13", "transformers_version": "5.19.0", "eot_token_id": 400, "chat_template_sha": None,
        "system_instruction_sha": None, "total_evaluation_time_seconds": "100.0",
    } | top  # fmt: skip
    (folder / f"results_{date}.json").write_text(json.dumps(content, indent=2))
    return folder


def write_exact(folder, right, *, flexible=None, responses=1, sampled=False, shots=5, field=None):
    """A greedy run of stock lm-eval on `gsm8k`, with one score a problem: of two filters, which agree unless `flexible` is given.

    `field` is a field of its documents.
    """
    folder.mkdir()
    rows, filters = [], {"strict-match": right, "flexible-extract": right if flexible is None else flexible}
    for number, score in enumerate(right):
        digests = {f"{name}_hash": digest(f"{name} {number}") for name in ("doc", "prompt", "target")}
        row = {"doc_id": number, "doc": {"question": f"{number}"} | ({"family": field[number]} if field else {}), **digests}
        row |= {"arguments": {"gen_args_0": {"arg_0": f"{number}", "arg_1": {}}}, "resps": [[f"{number} {score}"] * responses]}
        row |= {"filtered_resps": ["1"], "metrics": ["exact_match"]}
        rows += [row | {"filter": name, "exact_match": float(scores[number])} for name, scores in filters.items()]
    means = {f"exact_match,{name}": float(np.mean(scores)) for name, scores in filters.items()}
    decoding = {"do_sample": True, "temperature": 0.7} if sampled else {"do_sample": False, "temperature": 0.0}
    content = {
        "results": {"gsm8k": {"alias": "gsm8k", **means}},
        "configs": {"gsm8k": {"task": "gsm8k", "repeats": responses, "generation_kwargs": decoding}},
        "versions": {"gsm8k": 3.0}, "n-shot": {"gsm8k": shots}, "higher_is_better": {"gsm8k": {"exact_match": True}},
        "n-samples": {"gsm8k": {"original": 1319, "effective": len(right)}},
        "config": {"model": "vllm", "model_args": {"pretrained": "acme/Small-8B"}},
    }  # fmt: skip
    (folder / "results_2026-01-01T00-00-00.json").write_text(json.dumps(content))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "samples_gsm8k_2026-01-01T00-00-00.jsonl").write_text(lines)
    return folder


def draw_counts(seed, shift=0.0, size=300):
    """Correct ones of 8 samples on problems whose chances are always the same, shifted by so much."""
    chances = np.random.default_rng(0).beta(0.8, 0.8, size)
    return np.random.default_rng(seed).binomial(8, np.clip(chances + shift, 0, 1)).tolist()
