"""Run_dirs and analysis folders made by hand, of any size and with any text."""

from array import array
from hashlib import blake2b

import numpy as np

from lm_eval_takeover.cli import main
from lm_eval_takeover.lab.measures.catalogue import SCORED, measure_texts
from lm_eval_takeover.method.request import Generation
from lm_eval_takeover.runs.evidence import ScoresHeader, TraceHeader, list_score_columns, pack_scores, pack_trace
from lm_eval_takeover.runs.journal import AskedSample, Sample
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.samples import Verdict
from lm_eval_takeover.storage.digests import digest_of, digest_of_text

GATE = {"score": "ce", "tau": 2.0, "kappa": 1.5, "window": 10}


def write_run(folder, policy, rollouts, problems, arguments=None, rate=None, target=None):
    """A finished run. `rollouts` are by (task, doc, sample) `(tokens, taken, correct, answer)`, `taken` positions by host token;
    `problems` by (task, doc) `(problem, gold)`, which name a document. With `rate` it is a row of `compare` that follows, or
    solved for `target`."""
    gate = GATE if policy == "disagreement" else {}
    takeover = {"policy": policy, "direction": "forward", "target_rate": target, **gate}
    facts = {"takeover": takeover, "arguments": arguments or {}, "settings": {"policy": policy}, "tasks": []}
    command = f"command {rate} {sorted(rollouts)}"
    if rate is not None:
        takeover |= {"label": policy, "rate": rate}
        facts["settings"] = {"policy": {"name": policy, "rate": rate}}
    header = TraceHeader("command", ("base", "guide"), 10 if gate else None)
    usual = {"prompt": "p", "prompt_ids": [1, 2]}
    asks = {(t, d): usual | {"task": t, "doc_id": d, "problem": problem, "answer": gold}
            for (t, d), (problem, gold) in problems.items()}  # fmt: skip
    run = RunWriter(folder)
    asked, verdicts, samples = [], [], []
    for (task, doc, number), (tokens, taken, correct, answer) in rollouts.items():
        text = f"{task} {doc} {number} {policy} {rate}"
        key = blake2b(text.encode(), digest_size=16).digest()
        document = f"{task} {problems[task, doc]}"
        asked.append(AskedSample(task, document, doc, number, doc, digest_of(asks[task, doc]), key))
        trace = pack_trace(_make_generation(tokens, taken, bool(gate)), header)
        counts = (len(tokens), *[len(taken)] * 3, len(tokens), len(taken) + 1)
        samples.append(Sample(key, task, doc, number, text, *counts, False, trace=trace))
        outcome = "correct" if correct else "incorrect"
        verdicts.append(Verdict(document, digest_of_text(text), answer, outcome))
    run.begin(command, facts, asked, list(asks.values()))
    for sample in samples:
        run.add(sample)
    run.add_verdicts(verdicts)
    run.close()
    return folder


def _make_generation(tokens, taken, gated):
    """Scores: little everywhere, 3 to 5 nats at takeovers."""
    count = len(tokens)
    random = np.random.default_rng(count)
    places = np.isin(np.arange(count), list(taken))
    scores = np.where(places, 3 + 2 * random.random(count), np.round(random.exponential(0.05, count), 3))
    host = [taken.get(place, token) for place, token in enumerate(tokens)]
    observed = np.stack([scores / 2, -scores, -scores / 8, 1 + places * 4.0, np.asarray(host, dtype=float)], axis=1)
    generation = Generation(observed=array("f", observed.ravel().tolist()))
    generation.tokens, generation.taken_over = list(map(int, tokens)), places.tolist()
    generation.scores = scores.tolist() if gated else [float("nan")] * count
    return generation


def write_analysis(out, *runs):
    assert main(["analyze", *map(str, runs), "--out", str(out), "--only", "budget,flips"]) == 0
    return out


def score_run(folder, texts, scores=("ce", "entropy")):
    """Add scores to a run, as `score` does: by key some of their columns, the others are 1."""
    header = ScoresHeader("some pair", dict.fromkeys(scores))
    run = RunWriter(folder)
    packed = {}
    for key, given in texts.items():
        (length,) = {len(values) for values in given.values()}
        packed[key] = pack_scores(header, {name: np.ones(length) for name in list_score_columns(scores)} | given)
    with run.writing() as journal:
        journal.add_evidence("score", packed)
    run.close()


def analyse(name, samples, scores):
    """One analysis of scored samples: from tokens to its table."""
    return SCORED[name].tabulate(measure_texts([name], scores, [([sample.name], sample) for sample in samples])[name])
