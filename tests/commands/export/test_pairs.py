"""Preference pairs: what a row says, texts and ids, and that a model trained on them decides better."""

import json
import random
import runpy
from itertools import accumulate, chain

import numpy as np
import polars as pl
import pytest
import torch
import trl
from datasets import Dataset
from puzzle import make_puzzle
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.export.pairs import choose_texts, write_as_text
from lm_eval_takeover.demo import DEMO, PROMPT
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.runs.run_reader import read_run_folder

TEXTS = ("prompt", "chosen", "rejected")


@pytest.fixture(scope="module")
def exported(strict_run, measured, tmp_path_factory):
    """By form, the folder of its pairs."""
    forms = {"whole": ["--effects", str(measured), "--confidence", "0.6"], "tokens": ["--tokens_only"]}
    folders = {form: tmp_path_factory.mktemp(form) for form in forms}
    for form, options in forms.items():
        assert main(["export", str(strict_run), "--to", "pairs", *options, "--out", str(folders[form])]) == 0
    return folders


def read(folder):
    return [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]


def test_a_row_goes_on_from_the_text_of_the_run(exported, strict_run, measured):
    known = {tuple(row[:4]): row for row in pl.read_csv(measured / "effects.csv").rows()}
    column = pl.read_csv(measured / "effects.csv").columns.index
    rows, reader = read(exported["whole"]), read_run_folder(strict_run)
    tokens = {one.name: table["token_id"].to_pylist() for one, table in reader.read_traces(["token_id"])}
    prompts = {one.name: reader.find_prompt(one)["prompt_ids"] for one in reader.answered}
    texts = pl.read_parquet(measured / "effect_texts.parquet")
    table = pl.read_parquet(exported["whole"] / "pairs.parquet")
    assert table.equals(pl.DataFrame(rows, schema=table.schema))
    assert 5 < len(rows) < 100
    for row in rows:
        name = row["task"], row["doc_id"], row["sample"]
        found = known[*name, row["position"]]
        assert row["prompt_ids"] == [*prompts[name], *tokens[name][: row["position"]]]
        assert abs(row["effect"]) >= 0.25 and (row["low"] > 0 or row["high"] < 0)
        assert row["effect"] == pytest.approx(found[column("effect")]) and row["kind"] == found[column("kind")]
        better, worse = ("donor", "host") if row["effect"] > 0 else ("host", "donor")
        for side, writer, verdict in (("chosen", better, True), ("rejected", worse, False)):
            ids = row[f"{side}_ids"]
            assert ids[0] == found[column(f"{writer}_token_id")] and len(ids) > 1
            its = texts.filter(doc_id=row["doc_id"], sample=row["sample"], position=row["position"], writer=writer)
            assert ids in its.filter(correct=verdict, truncated=False)["token_ids"].to_list()


def test_single_tokens_are_those_of_the_takeovers(exported, strict_run):
    rows, reader = read(exported["tokens"]), read_run_folder(strict_run)
    taken = {
        (*one.name, place): ([token], [host])
        for one, table in reader.read_traces(["token_id", "chosen_from", "host_token_id"])
        for place, (token, writer, host) in enumerate(zip(*(column.to_pylist() for column in table.columns[3:]), strict=True))
        if writer == "guide" and host != token
    }
    found = {
        (row["task"], row["doc_id"], row["sample"], row["position"]): (row["chosen_ids"], row["rejected_ids"]) for row in rows
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
def test_refuses_in_a_line(strict_run, tmp_path, options, line):
    with pytest.raises(ArgumentError, match=line):
        main(["export", str(strict_run), "--to", "pairs", *options, "--out", str(tmp_path)])


def test_nothing_known_is_no_pair(strict_run, measured, tmp_path):
    words = f"--to pairs --effects {measured} --min_effect 1 --confidence 0.999 --out {tmp_path / 'none'}"
    with pytest.raises(ArgumentError, match="has no pair; lower --min_effect, --confidence, or measure more"):
        main(["export", str(strict_run), *words.split()])


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


def held_out(tokenizer, count=40):
    """Right solutions of puzzles that no run asks: their ids, and where their decisions stand."""
    rng = random.Random(10_000)
    for _ in range(count):
        puzzle = make_puzzle(rng)
        pieces = [PROMPT.format(problem=puzzle.text), *puzzle.solution(rng)]
        ids = [tokenizer(piece)["input_ids"] for piece in pieces]
        yield list(chain(*ids)), list(accumulate(map(len, ids)))[1:-1:2]


@torch.inference_mode()
def right_decisions(model, texts):
    """The mean probability of the right decision."""
    log_p = [(model(torch.tensor([ids])).logits[0].log_softmax(-1), ids, places) for ids, places in texts]
    return np.mean([rows[place - 1, ids[place]].exp().item() for rows, ids, places in log_p for place in places])


def test_trl_trains_on_the_ids_of_the_file(exported, tmp_path):
    """By the script beside the pairs, decisions of other puzzles get better: more than by TRL on the texts of single tokens,
    each of which gets an end token. The model is the guide with noise on its weights: the base does not know the rule."""
    tokenizer, weak = AutoTokenizer.from_pretrained(DEMO["base"]), AutoModelForCausalLM.from_pretrained(DEMO["guide"])
    generator, texts = torch.Generator().manual_seed(0), list(held_out(tokenizer))
    with torch.no_grad():
        for weights in (each for each in weak.parameters() if each.dim() == 2):
            weights.add_(0.7 * weights.std() * torch.randn(weights.shape, generator=generator))
    for one in (weak, tokenizer):
        one.save_pretrained(tmp_path / "weak")
    options = {"max_steps": 10, "per_device_train_batch_size": 8, "beta": 0.3, "learning_rate": 2e-4, "use_cpu": True}
    options |= {"report_to": [], "save_strategy": "no", "bf16": False, "gradient_checkpointing": False}
    found = {"before": right_decisions(weak, texts)}
    for form, folder in exported.items():
        train = runpy.run_path(str(folder / "train_pairs.py"))["train"]
        model = train(str(tmp_path / "weak"), folder / "pairs.parquet", str(tmp_path / form), **options)
        found[form] = right_decisions(model, texts)
    naive = trl.DPOTrainer(
        str(tmp_path / "weak"),
        args=trl.DPOConfig(str(tmp_path / "texts"), **options),
        train_dataset=Dataset.from_list([{side: row[side] for side in TEXTS} for row in read(exported["tokens"])]),
        processing_class=tokenizer,
    )
    naive.train()
    found["texts"] = right_decisions(naive.model, texts)
    print({form: round(float(share), 3) for form, share in found.items()})
    assert found["whole"] > found["before"] + 0.01 and found["tokens"] > found["before"] + 0.04
    assert found["before"] - 0.02 < found["texts"] < found["tokens"] - 0.01
