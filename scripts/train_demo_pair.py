"""Trains the demo pair from scratch and writes it into the package: about forty minutes on two cores.

    python scripts/train_demo_pair.py [--out lm_eval_takeover/demo] [--only base|guide|data|graded]

Both models read the same puzzles. The guide sees solutions whose every decision is right; the base sees solutions that
decide at random but then execute correctly. So the base executes well and decides badly, by construction.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from graded_puzzle import KINDS, make_graded
from puzzle import ANIMALS, Puzzle, make_puzzle
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lm_eval_takeover.demo import PROMPT, problems

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
# Qwen's pre-tokenizer: one token per digit, so that arithmetic is done digit by digit.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_SHARE = 0.2
IGNORE = -100
DECISION_WEIGHT = 4.0  # decisions are 2 % of the tokens and the hard part


@dataclass(frozen=True, slots=True)
class Recipe:
    right: float  # the probability that a decision in the training text is right
    steps: int
    lr: float
    config: dict[str, int]


RECIPES = {
    "base": Recipe(
        right=0.4,
        steps=5500,
        lr=3e-3,
        config={
            "vocab_size": 512,
            "hidden_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "intermediate_size": 256,
        },
    ),
    "guide": Recipe(
        right=1.0,
        steps=4500,
        lr=2e-3,
        # A larger padded embedding than the base's, as between the sizes of Qwen2.5.
        config={
            "vocab_size": 544,
            "hidden_size": 160,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 40,
            "intermediate_size": 480,
        },
    ),
}


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    rng = random.Random(seed)
    puzzles = [make_puzzle(rng) for _ in range(2000)]
    texts = [PROMPT.format(problem=p.text) + "".join(p.solution(rng)) for p in puzzles]
    texts += ["system\nYou are a helpful assistant.", "user\n", "assistant\n"] * 50
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[:3]})
    fast.add_tokens(SPECIAL[3:])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode(puzzle: Puzzle, rng: random.Random, right: float, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Token ids and labels (the prompt is not trained on)."""
    question = PROMPT.format(problem=puzzle.text)
    chat = rng.random() < CHAT_SHARE
    if chat:
        question = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=rng.random() < 0.5,
        )
    prompt = tokenizer(question, add_special_tokens=False).input_ids
    end = "<|im_end|>" if chat else "<|endoftext|>"
    answer = tokenizer("".join(puzzle.solution(rng, right=right)) + end, add_special_tokens=False).input_ids
    return prompt + answer, [IGNORE] * len(prompt) + answer


def batches(
    seed: int, right: float, tokenizer: PreTrainedTokenizerFast, rows: int, steps: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rng = random.Random(seed)
    for _ in range(steps):
        encoded = [encode(make_puzzle(rng), rng, right, tokenizer) for _ in range(rows)]
        longest = max(len(ids) for ids, _ in encoded)
        ids = torch.zeros(rows, longest, dtype=torch.long)
        labels = torch.full((rows, longest), IGNORE)
        for row, (row_ids, row_labels) in enumerate(encoded):
            ids[row, : len(row_ids)] = torch.tensor(row_ids)
            labels[row, : len(row_labels)] = torch.tensor(row_labels)
        yield ids, labels


def train(name: str, tokenizer: PreTrainedTokenizerFast, out: Path, seed: int, rows: int = 16) -> None:
    recipe = RECIPES[name]
    torch.manual_seed(seed)
    vocabulary = tokenizer.get_vocab()
    ends = [vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]]
    config = Qwen3Config(
        **recipe.config,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attention_bias=False,
        bos_token_id=None,
        eos_token_id=ends,
        pad_token_id=ends[1],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = Qwen3ForCausalLM(config)
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters")
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
        lr=recipe.lr,
        betas=(0.9, 0.98),
    )
    steps, warmup = recipe.steps, 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(1.0, (s + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, s / steps)))),
    )
    animals = torch.zeros(config.vocab_size, dtype=torch.bool)
    for animal in ANIMALS:
        ids = tokenizer(f" {animal}").input_ids
        if len(ids) != 1:
            raise RuntimeError(f"{animal} is not one token")
        animals[ids[0]] = True
    started = time.perf_counter()
    for step, (ids, labels) in enumerate(batches(seed, recipe.right, tokenizer, rows, steps), 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids).logits[:, :-1].float()
        targets = labels[:, 1:]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none"
        )
        weight = torch.where(animals[targets.clamp(min=0)], DECISION_WEIGHT, 1.0).flatten() * (targets != IGNORE).flatten()
        loss = (losses * weight).sum() / weight.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            kept = targets != IGNORE
            decided = kept & animals[targets.clamp(min=0)]
            right = logits.argmax(-1) == targets
            print(
                f"{name} step {step}/{steps} loss {loss.item():.4f} decisions {right[decided].float().mean():.3f} "
                f"rest {right[kept & ~decided].float().mean():.4f} {time.perf_counter() - started:.0f} s",
                flush=True,
            )
    folder = out / name
    model.eval()
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = ends[1]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_problems(out: Path, seed: int) -> None:
    """200 problems of the task and 700 prompts for calibration and its held-out rates, none of them twice."""
    rng = random.Random(seed)
    puzzles = list(dict.fromkeys(make_puzzle(rng) for _ in range(1100)))[:900]
    problems = [{"problem": puzzle.text, "answer": str(puzzle.answer)} for puzzle in puzzles[:200]]
    prompts = [{"prompt": PROMPT.format(problem=puzzle.text)} for puzzle in puzzles[200:]]
    for name, rows in (("problems", problems), ("calibration_prompts", prompts)):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_graded(out: Path, seed: int) -> None:
    """100 graded problems, 25 of each kind, and 300 calibration prompts. No puzzle is there twice or in `takeover_demo`."""
    rng = random.Random(seed)
    seen = {row["problem"] for row in problems(out / "problems.jsonl")}
    rows: list[dict[str, str]] = []
    while len(rows) < 400:
        kind = KINDS[len(rows) % len(KINDS)]
        made = make_graded(rng, kind)
        if made.puzzle.text not in seen:
            seen.add(made.puzzle.text)
            rows.append({"problem": made.puzzle.text, "given": made.given, "answer": str(made.rest.answer), "kind": kind})
    prompts = [{"prompt": PROMPT.format(problem=row["problem"]) + row["given"]} for row in rows[100:]]
    for name, written in (("graded_problems", rows[:100]), ("graded_prompts", prompts)):
        (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("lm_eval_takeover/demo"))
    parser.add_argument("--only", choices=["base", "guide", "data", "graded"])
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = train_tokenizer(arguments.seed)
    if arguments.only in (None, "data"):
        write_problems(arguments.out, arguments.seed)
    if arguments.only in (None, "graded"):
        write_graded(arguments.out, arguments.seed + 3)
    for offset, name in enumerate(("base", "guide")):
        if arguments.only in (None, name):
            train(name, tokenizer, arguments.out, arguments.seed + 1 + offset)


if __name__ == "__main__":
    main()
