"""The models of the experiment: `python models.py WEIGHTS.gguf DATA OUT [SEED]` writes OUT/base, with a seed also OUT/formSEED
and OUT/guideSEED.

base is the checkpoint as it is; guide is the same model after 64 steps of fine-tuning; form is the guide after 20 of them:
it writes the guide's form, but solves fewer problems. Each seed has its own training problems.
"""

import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from problems import PROMPT
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lm_eval_takeover.forward.lean_decoder import computes_bfloat16

STEPS, FORM_STEPS, BATCH, PEAK = 64, 20, 8, 3e-4
END = "<|im_end|>"


def convert(weights: Path, out: Path) -> None:
    """Save a GGUF checkpoint as safetensors in bfloat16.

    `save_pretrained` refuses the GGUF quantization configuration, so the weights move to a model without one.
    """
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    loaded = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.float32)
    left_out = {"quantization_config", "_name_or_path", "transformers_version", "model_type", "dtype"}
    config = {name: value for name, value in loaded.config.to_dict().items() if name not in left_out}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, model.eval()(ids).logits)
    save(model.to(torch.bfloat16), tokenizer, out)


def save(model: Any, tokenizer: Any, out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def encode(tokenizer: Any, row: dict[str, str]) -> tuple[list[int], list[int]]:
    """Ids of the prompt, as `--apply_chat_template` makes it, and of the solution with its end."""
    message = [{"role": "user", "content": PROMPT.format(problem=row["problem"])}]
    prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(text, add_special_tokens=False).input_ids for text in (prompt, row["solution"] + END))


def draw_batches(examples: list[Any], steps: int, seed: str) -> Iterator[list[Any]]:
    shuffled = random.Random(seed)
    rows: list[Any] = []
    for _ in range(steps):
        if len(rows) < BATCH:
            rows = shuffled.sample(examples, len(examples))
        yield [rows.pop() for _ in range(BATCH)]


def pad(batch: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels `[rows, columns]`; -100 where there is no loss: prompts and padding."""
    columns = max(len(prompt) + len(solution) for prompt, solution in batch)
    ids, labels = torch.zeros(len(batch), columns, dtype=torch.long), torch.full((len(batch), columns), -100)
    for row, (prompt, solution) in enumerate(batch):
        ids[row, : len(prompt) + len(solution)] = torch.tensor(prompt + solution)
        labels[row, len(prompt) : len(prompt) + len(solution)] = torch.tensor(solution)
    return ids, labels


def train(base: Path, data: Path, saved: dict[int, Path], seed: str) -> None:
    """Fine-tune on the solutions; after so many steps save the model there.

    Weights in bfloat16, or in float32 on a CPU without bfloat16 arithmetic; their masters in float32. Padding stands at the ends
    of rows, where causal attention ignores it.
    """
    tokenizer = AutoTokenizer.from_pretrained(base)
    examples = [encode(tokenizer, json.loads(line)) for line in (data / f"train{seed}.jsonl").read_text().splitlines()]
    dtype = torch.bfloat16 if computes_bfloat16() else torch.float32
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).train()
    weights = list(model.parameters())
    masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=PEAK, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    for step, batch in enumerate(draw_batches(examples, max(saved), seed)):
        for group in optimizer.param_groups:  # a short rise, then a linear decay to a tenth
            group["lr"] = PEAK * min((step + 1) / 10, max(0.1, 1 - step / STEPS))
        ids, labels = pad(batch)
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        wanted = labels[:, 1:]
        solution = wanted != -100
        loss = functional.cross_entropy(model.lm_head(hidden[solution]).float(), wanted[solution])
        loss.backward()
        for master, weight in zip(masters, weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
        print(f"step {step + 1}: loss {loss.item():.3f}, {time.process_time():.0f} processor seconds", flush=True)
        if step + 1 in saved:
            save(deepcopy(model).to(torch.bfloat16), tokenizer, saved[step + 1])


def main(weights: str, data: str, out: str, seed: str = "") -> None:
    torch.set_num_threads(2 if seed == "1" else 1)  # sums depend on their number; the first training has the machine to itself
    models = Path(out)
    if not (models / "base").exists():
        convert(Path(weights), models / "base")
    if seed and not (models / f"guide{seed}").exists():
        train(models / "base", Path(data), {FORM_STEPS: models / f"form{seed}", STEPS: models / f"guide{seed}"}, seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"models {seed}: {time.process_time():.0f} processor seconds, {peak:.1f} GB of memory")


if __name__ == "__main__":
    main(*sys.argv[1:])
