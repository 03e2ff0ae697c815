"""Preference pairs: what a row says, texts and ids, and that a model trained on them decides better."""

import json
import random
import sys

import polars as pl
import pytest
import torch
from helpers.demo_runs import run_demo
from puzzle import make_puzzle
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.export.pairs import choose_texts, write_as_text
from lm_eval_takeover.demo import DEMO, PROMPT
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.runs.run_reader import read_run_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Ten problems of the demo whose true decisions the guide takes over."""
    folder = tmp_path_factory.mktemp("pairs") / "guided"
    run_demo(folder, 10, {"tau": 4.0, "kappa": 0.0})
    return folder


@pytest.fixture(scope="module")
def effects(run):
    out = run.parent / "effects"
    size = ["--takeovers", "70", "--controls", "0", "--continuations", "6", "--batch_size", "64"]
    assert main(["effects", str(run), "--out", str(out), *size]) == 0
    return out


@pytest.fixture(scope="module")
def exported(run, effects):
    """By form, the folder of its pairs."""
    forms = {"whole": ["--effects", str(effects), "--confidence", "0.6"], "tokens": ["--tokens_only"]}
    for form, options in forms.items():
        assert main(["export", str(run), "--to", "pairs", *options, "--out", str(run.parent / form)]) == 0
    return {form: run.parent / form for form in forms}


def read(folder):
    return [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]


def test_a_row_goes_on_from_the_text_of_the_run(exported, run, effects):
    measured = {tuple(row[:4]): row for row in pl.read_csv(effects / "effects.csv").rows()}
    column = pl.read_csv(effects / "effects.csv").columns.index
    rows, reader = read(exported["whole"]), read_run_folder(run)
    tokens = {one.name: table["token_id"].to_pylist() for one, table in reader.read_traces(["token_id"])}
    prompts = {one.name: reader.find_prompt(one)["prompt_ids"] for one in reader.answered}
    texts = pl.read_parquet(effects / "effect_texts.parquet")
    table = pl.read_parquet(exported["whole"] / "pairs.parquet")
    assert table.equals(pl.DataFrame(rows, schema=table.schema))
    assert 5 < len(rows) < 100
    for row in rows:
        name = row["task"], row["doc_id"], row["sample"]
        known = measured[*name, row["position"]]
        assert row["prompt_ids"] == [*prompts[name], *tokens[name][: row["position"]]]
        assert abs(row["effect"]) >= 0.25 and (row["low"] > 0 or row["high"] < 0)
        assert row["effect"] == pytest.approx(known[column("effect")]) and row["kind"] == known[column("kind")]
        better, worse = ("donor", "host") if row["effect"] > 0 else ("host", "donor")
        for side, writer, verdict in (("chosen", better, True), ("rejected", worse, False)):
            ids = row[f"{side}_ids"]
            assert ids[0] == known[column(f"{writer}_token_id")] and len(ids) > 1
            its = texts.filter(doc_id=row["doc_id"], sample=row["sample"], position=row["position"], writer=writer)
            assert ids in its.filter(correct=verdict, truncated=False)["token_ids"].to_list()


def test_single_tokens_are_those_of_the_takeovers(exported, run):
    rows, reader = read(exported["tokens"]), read_run_folder(run)
    taken = {
        (*one.name, place): ([token], [host])
        for one, table in reader.read_traces(["token_id", "chosen_from", "host_token_id"])
        for place, (token, writer, host) in enumerate(
            zip(*(column.to_pylist() for column in table.columns[3:]), strict=True)
        )
        if writer == "guide" and host != token
    }
    found = {
        (row["task"], row["doc_id"], row["sample"], row["position"]): (row["chosen_ids"], row["rejected_ids"])
        for row in rows
    }
    assert found == taken and {row["effect"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "--effects is missing"),
        (["--effects", "nowhere"], "expected the --out of effects"),
        (["--tokens_only", "--min_effect", "2"], "--min_effect 2.0 or --confidence 0.9 is outside 0..1"),
    ],
)
def test_refuses_in_a_line(run, tmp_path, options, line):
    with pytest.raises(ArgumentError, match=line):
        main(["export", str(run), "--to", "pairs", *options, "--out", str(tmp_path)])


def test_nothing_known_is_no_pair(run, effects, tmp_path):
    words = f"--to pairs --effects {effects} --min_effect 1 --confidence 0.999 --out {tmp_path / 'none'}"
    with pytest.raises(ArgumentError, match="has no pair; lower --min_effect, --confidence, or measure more"):
        main(["export", str(run), *words.split()])


def test_texts_of_one_continuation_are_taken_where_both_came_to_their_end():
    def text(number, correct, truncated=False):
        return {"continuation": number, "correct": correct, "truncated": truncated, "token_ids": [number]}

    good = [text(0, True, True), text(1, False), text(2, True), text(3, True)]
    assert choose_texts(good, [text(0, False), text(2, True), text(3, False)]) == ([3], [3])
    assert choose_texts(good, [text(1, False)]) == ([2], [1])
    assert choose_texts(good, [text(1, False, True)]) is None


def sentencepiece(begin):
    """Words with a mark for the blank before them, the first one of which is dropped, as Llama has it."""
    words = ("<s>", "</s>", "<unk>", "\u2581Step", "\u2581the", "\u2581owl", "\u2581ant", ":")
    vocabulary = {word: number for number, word in enumerate(words)}
    own = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    from tokenizers import Regex, pre_tokenizers

    own.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581[a-zA-Z]+|:"), "isolated")
    own.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    if begin:
        own.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("begin", [False, True])
def test_a_leading_blank_survives_sentencepiece(begin):
    """A single word loses its blank when it is decoded alone; the row's text has it, and reads as the same ids."""
    tokenizer = sentencepiece(begin)
    before = [*([0] if begin else []), 3, 7, 4]
    assert tokenizer.decode([5]) == "owl"
    assert write_as_text(tokenizer, before, [[5], [6]]) == (["Step: the", " owl", " ant"], True)
    assert write_as_text(tokenizer, [3, 3], [[5], [6]])[1] is not begin  # the tokenizer would begin with <s>


def held_out(tokenizer, count=25):
    """Right solutions of puzzles that no run asks: ids, and the places of their decisions."""
    rng, texts = random.Random(10_000), []
    for _ in range(count):
        puzzle = make_puzzle(rng)
        ids, places = tokenizer(PROMPT.format(problem=puzzle.text))["input_ids"], []
        for number, piece in enumerate(puzzle.solution(rng)):
            places += [len(ids)] if number % 2 else []
            ids = [*ids, *tokenizer(piece)["input_ids"]]
        texts.append((ids, places))
    return texts


@torch.inference_mode()
def right_decisions(model, texts):
    """The mean probability of the right decision."""
    chances = []
    for ids, places in texts:
        log_p = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        chances += [log_p[place - 1, ids[place]].exp().item() for place in places]
    return sum(chances) / len(chances)


def log_p_of(model, rows, side):
    """Log-probability of the side's ids behind the prompt's, by row."""
    whole = [[*row["prompt_ids"], *row[f"{side}_ids"]] for row in rows]
    longest = max(map(len, whole))
    ids = torch.tensor([[*each, *[0] * (longest - len(each))] for each in whole])
    log_p = model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    at, start = torch.arange(1, longest), torch.tensor([len(row["prompt_ids"]) for row in rows])
    stop = torch.tensor(list(map(len, whole)))
    return (log_p * ((at >= start[:, None]) & (at < stop[:, None]))).sum(1)


def train_by_dpo(model, rows, steps=20, batch=8, beta=0.3):
    """DPO in a few lines, on the ids of the rows."""
    generator, optimizer = random.Random(0), torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.inference_mode():
        start = {side: [log_p_of(model, [row], side).item() for row in rows] for side in ("chosen", "rejected")}
    for _ in range(steps):
        picked = generator.sample(range(len(rows)), min(batch, len(rows)))
        gains = [
            log_p_of(model, [rows[i] for i in picked], side) - torch.tensor([start[side][i] for i in picked])
            for side in ("chosen", "rejected")
        ]
        optimizer.zero_grad()
        (-torch.nn.functional.logsigmoid(beta * (gains[0] - gains[1])).mean()).backward()
        optimizer.step()
    return model


def weaken(noise=0.7):
    """The demo's guide with noise on its weights, right in four decisions of five. The base does not know the rule at all,
    and cannot learn it in a minute."""
    model, generator = AutoModelForCausalLM.from_pretrained(DEMO["guide"]), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.add_(noise * weights.std() * torch.randn(weights.shape, generator=generator))
    return model


@pytest.mark.parametrize("form", ["whole", "tokens"])
def test_a_model_that_is_trained_on_the_pairs_decides_rightly_more_often(exported, form):
    model, texts = weaken(), held_out(AutoTokenizer.from_pretrained(DEMO["base"]))
    before = right_decisions(model, texts)
    after = right_decisions(train_by_dpo(model, read(exported[form])), texts)
    print(f"{form}: right decisions {before:.3f} -> {after:.3f}")
    assert after > before + 0.02


@pytest.mark.parametrize("form", ["whole", "tokens"])
def test_trl_trains_on_the_ids_of_the_file(exported, form, tmp_path):
    """The script that stands beside the pairs, in TRL's own trainer."""
    pytest.importorskip("trl", reason="needs the package trl (pip install trl), which is not here")
    tokenizer, weak = AutoTokenizer.from_pretrained(DEMO["base"]), weaken()
    texts = held_out(tokenizer)
    before = right_decisions(weak, texts)
    weak.save_pretrained(tmp_path / "weak")
    tokenizer.save_pretrained(tmp_path / "weak")
    sys.path.insert(0, str(exported[form]))
    try:
        import train_pairs
    finally:
        sys.path.pop(0)
    options = {"max_steps": 20, "per_device_train_batch_size": 8, "beta": 0.3, "learning_rate": 1e-4, "use_cpu": True}
    options |= {"report_to": [], "save_strategy": "no", "bf16": False, "gradient_checkpointing": False}
    pairs = exported[form] / "pairs.parquet"
    model = train_pairs.train(str(tmp_path / "weak"), pairs, str(tmp_path / "trained"), **options)
    after = right_decisions(model, texts)
    print(f"{form}, TRL: right decisions {before:.3f} -> {after:.3f}")
    assert after > before + 0.02
