"""Is the engine as fast as it was? Tokens per second of two revisions in turns, on the demo pair and random ones.

    python benchmarks/revisions.py REVISION [--pairs demo] [--rounds 5] [--batch 1 8 32] [--dtype bfloat16]

Checks the revision out into a folder of its own and runs blocks, lockstep and the base alone in processes of either code, in
turns, by processor time. Ratios above 1: the code as it is is faster. The revision's draws, and so its takeovers, may be others.

The pair 1:26 takes over 5 % of its tokens. There the bound that knows no takeover beforehand is computed by either code, too, and
what blocks reach of it (`benchmarks/blockwise.py`): a share falls where the base alone got faster.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from random_pairs import save_pair
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3Config

from lm_eval_takeover.demo import DEMO

HERE = Path(__file__).resolve().parents[1]
KINDS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
PAIRS = ("demo", *KINDS, "1:26")
WORK = """
import json, sys, time, torch
from pathlib import Path
from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.demo import DEMO, PROMPT, problems
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import BaseAlone, Disagreement
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

folder, batch, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(int(sys.argv[4]))
demo, bounded = folder.name == "demo", folder.name == "1:26"
paths = DEMO if demo else {r: folder / r for r in ("base", "guide")}
pair = Pair(*(Member(r, str(path), device="cpu", dtype=getattr(torch, sys.argv[6])) for r, path in paths.items()))
gated = Disagreement(gate=Gate(1.5, 2.0) if demo else Gate(float(sys.argv[5]), 1e-9))
runs = {
    "blocks": lambda r: blockwise.generate(pair, gated, r, batch_size=batch, block_size=None if demo or bounded else 8),
    "lockstep": lambda r: lockstep.generate(pair, gated, r, batch_size=batch),
    "base alone": lambda r: blockwise.generate(pair, BaseAlone(), r, batch_size=batch),
}
if demo:
    texts = [tuple(pair.encode(PROMPT.format(problem=row["problem"]))) for row in problems()[:8]]
    asked = lambda count: [Request(texts[j % 8], j // 8, count, Sampling(0.6, 0.95)) for j in range(max(8, batch))]
else:
    asked = lambda count: [Request(tuple(range(1, 60)), j, count, Sampling(1.0)) for j in range(batch)]
if bounded:
    sys.path.insert(0, "benchmarks")
    import random_pairs
    gated = random_pairs.gated(pair, asked(64), 0.05)
for run in runs.values():
    list(run(asked(16)))
for line in sys.stdin:
    for name, run in runs.items():
        started = time.process_time()
        made = [g for _, g in run(asked(tokens))]
        seconds = time.process_time() - started
        passes = sum(g.guide_passes for g in made)
        speed = sum(len(g.tokens) for g in made) / seconds
        print(json.dumps([name, speed, passes]), flush=True)
        if bounded and name == "blocks":
            b, guide = random_pairs.costs(pair, batch, 59 + tokens // 2, repeats=5).alone
            bound = batch / random_pairs.blind_on(b, guide, [g.taken_over for g in made])
            print(json.dumps(["the bound", bound, 0]), flush=True)
            print(json.dumps(["blocks over the bound", speed / bound, 0]), flush=True)
    print("null", flush=True)
"""


def save(folder: Path, kind: str) -> None:
    """A random pair, 1 : 10 in weights."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    for seed, (role, hidden, layers) in enumerate((("base", 256, 4), ("guide", 512, 12))):
        torch.manual_seed(seed)
        config = KINDS[kind](
            vocab_size=8192, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=3 * hidden, eos_token_id=None,
            num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, head_dim=64, initializer_range=0.08,
        )  # fmt: skip
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / role)
        tokenizer.save_pretrained(folder / role)


class Engine:
    """A process that runs one revision's code."""

    def __init__(self, code: Path, pair: Path, batch: int, options: argparse.Namespace) -> None:
        numbers = (batch, options.tokens, torch.get_num_threads(), options.tau, options.dtype)
        words = [sys.executable, "-c", WORK, str(pair), *map(str, numbers)]
        environment = os.environ | {"PYTHONPATH": str(code)}
        self.process = subprocess.Popen(
            words, cwd=code, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self) -> dict[str, tuple[float, int]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        found = {}
        while (line := json.loads(self.process.stdout.readline())) is not None:
            found[line[0]] = (line[1], line[2])
        return found

    def close(self) -> None:
        self.process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tau", type=float, default=15.0, help="nats; above it the guide takes over (default: 15)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        before = Path(temporary) / "before"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(before), options.revision], cwd=HERE, check=True)
        try:
            print("|pair|batch|run|now|before|now over before|rounds|\n|---|--:|---|--:|--:|--:|---|")
            for kind in options.pairs:
                pair = Path(temporary) / kind
                if kind in KINDS:
                    save(pair, kind)
                elif kind != "demo":
                    save_pair(pair, kind, 8192, getattr(torch, options.dtype))
                for batch in options.batch:
                    compare(kind, pair, batch, before, options)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=HERE, check=True)


def compare(kind: str, pair: Path, batch: int, before: Path, options: argparse.Namespace) -> None:
    engines = [Engine(code, pair, batch, options) for code in (HERE, before)]
    rounds = [[engine.run() for engine in engines] for _ in range(options.rounds)]
    for engine in engines:
        engine.close()
    for name in rounds[0][0]:
        ratios = [now[name][0] / then[name][0] for now, then in rounds]
        medians = "|".join(f"{statistics.median(one[i][name][0] for one in rounds):,.2f}" for i in (0, 1))
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"|{kind}|{batch}|{name}|{medians}|{statistics.median(ratios):.2f}|{spread}|", flush=True)


if __name__ == "__main__":
    main()
