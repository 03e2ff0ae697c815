"""Preference pairs: what a row says, texts and ids, and that a model trained on them decides better."""

import json
import runpy
from itertools import accumulate, chain
from random import Random

import numpy as np
import polars as pl
import pytest
import torch
from helpers.demo_runs import run_demo
from puzzle import HIGHEST, LOWEST, Puzzle, Rule
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import DEMO, PROMPT
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.pairs.writing import choose_texts, write_as_text
from lm_eval_takeover.runs.run_reader import read_run_folder


@pytest.fixture(scope="module")
def exported(strict_run, measured, tmp_path_factory):
    """By form, the folder of its pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    forms = {"whole": ["--effects", str(measured), "--confidence", "0.6"], "tokens": ["--tokens_only"]}
    for form, options in forms.items():
        assert main(["pairs", str(strict_run), *options, "--out", str(folder / form)]) == 0
    return {form: folder / form for form in forms}


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
    names = ["token_id", "chosen_from", "host_token_id"]
    taken = {
        (*one.name, place): ([token], [host])
        for one, table in reader.read_traces(names)
        for place, (token, writer, host) in enumerate(zip(*(table[name].to_pylist() for name in names), strict=True))
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
        (["--effects", "nowhere"], "expected the --out of an effects command that has ended"),
        (["--tokens_only", "--min_effect", "2"], "--min_effect 2.0 or --confidence 0.9 is outside 0..1"),
        (["--effects", "MEASURED", "--min_effect", "1", "--confidence", "0.999"], "has no pair; lower --min_effect, --confi"),
    ],
)
def test_refuses_in_a_line(strict_run, measured, tmp_path, options, line):
    words = [str(measured) if word == "MEASURED" else word for word in options]
    with pytest.raises(ArgumentError, match=line):
        main(["pairs", str(strict_run), *words, "--out", str(tmp_path)])


def test_a_run_without_takeovers_has_no_pair(demo_runs, tmp_path):
    with pytest.raises(ArgumentError, match="has no pair; give a run with takeovers"):
        main(["pairs", str(demo_runs["base"]), "--tokens_only", "--out", str(tmp_path)])


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


TASK = """task: puzzles
class: !function lm_eval_takeover.tasks.sampled.SampledTask
dataset_path: json
dataset_kwargs: {{data_files: {}}}
test_split: train
doc_to_text: "Problem: {{{{problem}}}}\\nSolution:"
repeats: 3"""


@torch.inference_mode()
def right_decisions(model, tokenizer, puzzles):
    """The mean probability of the right decision, as the mean over animals: naming always the same one has a third."""
    found = {}
    for number, puzzle in enumerate(puzzles):
        pieces = tokenizer([PROMPT.format(problem=puzzle.text), *puzzle.solution(Random(number))])["input_ids"]
        ids, places = list(chain(*pieces)), list(accumulate(map(len, pieces)))[1:-1:2]
        log_p = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for place in places:
            found.setdefault(ids[place], []).append(log_p[place - 1, ids[place]].exp().item())
    return np.mean([np.mean(values) for values in found.values()])


@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing` is deprecated")  # TRL knows the old names
def test_trl_trains_the_base_on_the_ids_of_the_file(tmp_path):
    """Decisions of puzzles with other starts get better by the script beside the pairs. Texts of single tokens, which get an end
    token each, would not help. All puzzles have the same three rules; the gate takes over at every wrong decision."""
    pytest.importorskip("trl", reason="trains with TRL, which is not installed")
    rules = Rule("owl", 7, True), Rule("cat", 4, False), Rule("bee", 3, True)
    puzzles = [puzzle for start in range(LOWEST, HIGHEST) if max((puzzle := Puzzle(rules, start, 3)).path()) <= HIGHEST]
    Random(0).shuffle(puzzles)
    rows = [json.dumps({"problem": puzzle.text, "answer": puzzle.answer}) for puzzle in puzzles[:20]]
    (tmp_path / "puzzles.jsonl").write_text("\n".join(rows))
    (tmp_path / "puzzles.yaml").write_text(TASK.format(tmp_path / "puzzles.jsonl"))
    run_demo(tmp_path / "run", 20, {"tau": 3.0, "kappa": 0.0}, task="puzzles", task_folder=tmp_path)
    assert main(["pairs", str(tmp_path / "run"), "--tokens_only", "--out", str(tmp_path)]) == 0
    tokenizer, base = (kind.from_pretrained(DEMO["base"]) for kind in (AutoTokenizer, AutoModelForCausalLM))
    options = {"per_device_train_batch_size": 4, "beta": 0.3, "learning_rate": 1e-3, "use_cpu": True, "report_to": []}
    options |= {"max_steps": 40, "save_strategy": "no", "bf16": False, "gradient_checkpointing": False}
    train = runpy.run_path(str(tmp_path / "train_pairs.py"))["train"]
    trained = train(str(DEMO["base"]), tmp_path / "pairs.parquet", str(tmp_path / "trained"), **options)
    before, after = (float(right_decisions(model.eval(), tokenizer, puzzles[30:50])) for model in (base, trained))
    assert before + 0.2 < after
