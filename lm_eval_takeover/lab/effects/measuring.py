"""`effects` from the run_dir to the tables: choose positions, force both tokens, continue, judge."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from lm_eval.api.instance import Instance
from tqdm import tqdm

from lm_eval_takeover import stopping
from lm_eval_takeover.commands._output import Table, replacing, show_figure, write_terminal, writing
from lm_eval_takeover.decoding.rows import StopStrings, is_cut_off, text_of
from lm_eval_takeover.errors import ArgumentError, run_in_batches
from lm_eval_takeover.lab.analyze.tables import write_analysis
from lm_eval_takeover.lab.effects.positions import Candidates, Form, Position
from lm_eval_takeover.lab.measures import effects
from lm_eval_takeover.lab.measures.effects import CONTROL, TAKEOVER
from lm_eval_takeover.lab.score.scoring import Readers, restore_arguments
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import Generation, Request
from lm_eval_takeover.pair.pair import DEFAULT_MAX_LENGTH, Pair
from lm_eval_takeover.pair.policy_choice import load_policy, parse_arguments
from lm_eval_takeover.runs.identity import collect_text_settings, sample_key
from lm_eval_takeover.runs.journal import Sample
from lm_eval_takeover.runs.run_reader import RunReader
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.samples import Response
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.files import write_text, write_whole
from lm_eval_takeover.tasks.benchmarks import Record
from lm_eval_takeover.tasks.sampled import find_tasks

_POLICY = ("policy", "score", "score_top_p", "direction", "rate", "early_tokens")


def measure(options: argparse.Namespace, given: Mapping[str, Any], form: Form, candidates: Mapping[str, Candidates]) -> int:
    """Ask, continue and judge these candidates of the form's run. Returns the exit status."""
    run, wanted = form.run, {TAKEOVER: options.takeovers, CONTROL: options.controls}
    tasks = dict(find_tasks(run.tasks, options.include_path, of_run=run.tasks).load(run.tasks)["tasks"])
    readers = Readers(restore_arguments(run, given))
    run.check_models(readers.arguments, readers.pair, allowed=options.allow == "weights")
    writer = Writer(options.out / "continuations", readers, int(run.settings.get("seed") or 0))
    with closing(readers), closing(writer.run):  # whose lock keeps others out until all files are written
        form = replace(form, room=int(run.arguments.get("max_length") or readers.pair.max_length or DEFAULT_MAX_LENGTH))
        after = ALONE[run.host]() if options.after == "base" else load_run_policy(run, readers.pair, given.get("plugins"))
        positions = _choose(candidates, wanted, writer, form, options.seed)
        requests = [request for position in positions for request in form.continue_both(position, options.continuations)]
        texts = writer.respond(after, requests)
        each = 2 * options.continuations
        behind = {position: texts[number * each : (number + 1) * each] for number, position in enumerate(positions)}
        seen, verdicts = list(_compare(readers, positions)), _judge(run, tasks, behind)
        rows = [
            _describe(position, values, verdicts[position], behind[position]) | {"rank": values[f"{run.host}_rank_of_donor"]}
            for position, values in zip(positions, seen, strict=True)
        ]
        signals = [*registered.names(), "rank", "place"]
        write_effects(options.out, run, readers.pair.tokenizer, rows, signals, options.after, exact=form.is_greedy)
    return 0


@dataclass(frozen=True, slots=True)
class Continued:
    """A text with a forced token: its ids from that token on, and the whole text as lm-eval gets it."""

    tokens: tuple[int, ...]
    response: Response


class Writer:
    """Writes texts with both models, and keeps each in a journal as it finishes, where the next call finds it."""

    def __init__(self, folder: Path, readers: Readers, seed: int) -> None:
        """Raises RunDirError where another process is at work in this folder."""
        self.run = RunWriter(folder)
        stopping.on_stop(self.run.describe_kept)
        self._readers, self._pair, self._seed = readers, readers.pair, seed

    def draw(self, policy: Policy, requests: Sequence[Request]) -> list[int]:
        """The next token of each request, which has room for one."""
        return [new[-1] for new, _ in self._write(policy, requests, "tokens")]

    def respond(self, policy: Policy, requests: Sequence[Request]) -> list[Continued]:
        continued = []
        for request, (new, is_cut) in zip(requests, self._write(policy, requests, "texts"), strict=True):
            text = text_of(self._pair.tokenizer, (*request.begun, *new), request.until)
            continued.append(Continued((request.begun[-1], *new), Response(text, is_cut)))
        return continued

    def _write(self, policy: Policy, requests: Sequence[Request], kind: str) -> list[tuple[tuple[int, ...], bool]]:
        """New tokens of each request, and whether its limit cut them off: kept from an earlier call, or written."""
        given = replace(self._readers.arguments, seed=self._seed)
        digest = digest_of(collect_text_settings(self._pair, policy, given))
        keys = [sample_key(f"ids {digest}", request) for request in requests]
        samples = self.run.find(keys)
        left = [(key, request) for key, request in dict(zip(keys, requests, strict=True)).items() if key not in samples]
        done = len(keys) - len(left)
        with self.run.flushing(), tqdm(total=len(keys), initial=done, desc=f"Writing {kind}") as bar:
            for key, request, generation in self._generate(policy, left):
                new = generation.tokens[len(request.begun) :]
                is_cut = is_cut_off(self._pair.tokenizer, generation.tokens, request, self._pair.eos_ids)
                counts = len(new), generation.takeovers, None, 0  # changed, asked: of no concern
                passes = generation.base_passes, generation.guide_passes
                # Its name is in its key alone: a continuation is no sample of a task. Its text are the ids of its tokens.
                text = " ".join(map(str, new))
                samples[key] = Sample(key, "", 0, request.sample, text, *counts, *passes, truncated=is_cut)
                self.run.add(samples[key])
                bar.update()
        return [(tuple(map(int, samples[key].text.split())), bool(samples[key].truncated)) for key in keys]

    def _generate(self, policy: Policy, left: Sequence[tuple[bytes, Request]]) -> Iterator[tuple[bytes, Request, Generation]]:
        """The texts of these requests; one that its last token has ended needs no model."""
        asked = []
        for key, request in left:
            stop = StopStrings(self._pair.tokenizer, request.until)
            if request.begun and (request.begun[-1] in self._pair.eos_ids or stop.found(request.begun)):
                yield key, request, Generation.begin(request, traced=False)
            else:
                asked.append((key, request))
        if not asked:
            return
        requests, backend = [request for _, request in asked], self._readers.backend
        rows = backend.fit_rows(max(len(request.prompt) + request.max_new_tokens for request in requests))
        for place, generation in backend.generate(requests, seed=self._seed, rows=rows, policy=policy):
            yield *asked[place], generation


def _choose(
    candidates: Mapping[str, Candidates], wanted: Mapping[str, int], writer: Writer, form: Form, seed: int
) -> list[Position]:
    """Takeovers and controls, and a line where there are fewer controls than were asked for."""
    host, donor = form.run.host, form.run.donor
    chosen: list[Position] = []
    for kind, count in wanted.items():
        policy = ALONE[host if kind == TAKEOVER else donor]()

        def ask(positions: Sequence[Position], policy: Policy = policy) -> list[int]:
            return writer.draw(policy, [form.next_token(position) for position in positions])

        positions = candidates[kind].choose(count, seed, ask) if count else []
        chosen += [position for position in positions if position.place + 1 < form.limit(position.sample)]
        if len(positions) < count and kind == CONTROL:
            print(
                f"{len(positions)} of {count} controls were found: "
                f"the {donor} would draw another token at few of the {host}'s tokens"
            )
    return chosen


def load_run_policy(run: RunReader, pair: Pair, plugins: str | None) -> Policy:
    """The run's own policy, as it was resolved. Plug-ins are those of the command line: a folder names no code to run."""
    if run.arguments.get("plugins") and plugins is None:
        raise ArgumentError(
            f"the run in '{run.folder}' was made with plugins={run.arguments['plugins']}, which are not taken from a folder; "
            f"where you trust them, give --plugins {run.arguments['plugins']}"
        )
    resolved = run.takeover
    if resolved.get("method", {}) is None or (resolved.get("window") is not None and resolved.get("tau") is None):
        raise ArgumentError(f"--after gate: each task in '{run.folder}' has a budget of its own; use --after base")
    given = {name: run.arguments.get(name) for name in _POLICY} | dict(run.arguments.get("policy_arguments") or {})
    given |= dict(resolved.get("method") or {})  # its budget parameter, solved for a target rate
    given |= {name: resolved.get(name) for name in ("tau", "kappa", "window")} | {"plugins": plugins}
    policy, _ = load_policy(parse_arguments({name: value for name, value in given.items() if value is not None}), pair)
    if policy.reads_text:  # who wrote each token before the forced one is not handed on
        raise ArgumentError(
            f"--after gate cannot continue texts of policy={policy.name}, which depends on who wrote the tokens before; "
            "use --after base"
        )
    return policy


def _compare(readers: Readers, positions: Sequence[Position]) -> Iterator[dict[str, Any]]:
    """Every registered score of each position, and what both models think of its two tokens, in nats."""
    scores = list(registered)
    forced = [(position, token) for position in positions for token in position.tokens]
    longest = max(len(position.prompt) + position.place + 1 for position in positions)

    def read(part: Sequence[tuple[Position, int]]) -> list[dict[str, Any]]:
        before, tokens = [(*position.prompt, *position.begun) for position, _ in part], [[token] for _, token in part]
        return readers.backend.compare(scores, before, tokens, [position.label for position, _ in part])

    values: list[dict[str, Any]] = []
    with tqdm(total=len(forced), desc="Reading scores", unit="tok") as bar:
        for part, found in run_in_batches(read, forced, readers.backend.fit_rows(longest)):
            values += found
            bar.update(len(part))
    for of_host, of_donor in zip(values[::2], values[1::2], strict=True):
        row = {score.name: float(of_host[score.name][0]) for score in scores}
        for role in ("base", "guide"):
            for name, own in (("host", of_host), ("donor", of_donor)):
                row[f"{role}_logprob_of_{name}"] = float(own[f"{role}_logprob"][0])
                row[f"{role}_rank_of_{name}"] = int(own[f"{role}_rank"][0])
        yield row


def _judge(
    run: RunReader, tasks: Mapping[str, Any], behind: Mapping[Position, Sequence[Continued]]
) -> dict[Position, list[bool]]:
    """A verdict on each text; all of a problem go to its task together. Raises ArgumentError where the problem has changed."""
    problems: dict[tuple[str, int], list[Position]] = {}
    for position in behind:
        problems.setdefault(position.sample.name[:2], []).append(position)
    verdicts: dict[Position, list[bool]] = {}
    for name, task in tasks.items():
        own = [(doc_id, positions) for (task_name, doc_id), positions in problems.items() if task_name == name]
        documents, instances = list(task.eval_docs), []
        for doc_id, positions in own:
            known = positions[0].sample.doc.rpartition("-")[2]  # its digest (`samples.name_document`)
            if doc_id >= len(documents) or digest_of(documents[doc_id]) != known:
                raise ArgumentError(
                    f"task '{name}', doc {doc_id} is another problem than the one that the run in '{run.folder}' was asked; its "
                    f"data set has changed"
                )
            instance = Instance("generate_until", documents[doc_id], ("", {}), 0, metadata=(name, doc_id, 1))
            instance.resps = [text.response for position in positions for text in behind[position]]
            instances.append(instance)
        for filtering in task._filters if instances else ():
            filtering.apply(instances)
        for (_, positions), instance in zip(own, instances, strict=True):
            record = next(iter(instance.filtered_resps.values()))
            if not isinstance(record, Record):
                raise ArgumentError(
                    f"task '{name}': effects need a verdict on each sample; give the task file class: SampledTask (docs/tasks.md)"
                )
            correct = iter([outcome == "correct" for _, outcome in record])
            verdicts |= {position: [next(correct) for _ in behind[position]] for position in positions}
    return verdicts


def _describe(position: Position, values: dict[str, Any], verdicts: list[bool], texts: Sequence[Continued]) -> dict[str, Any]:
    half = len(verdicts) // 2
    host, donor = verdicts[:half], verdicts[half:]
    task, doc_id, sample = position.sample.name
    named = {"task": task, "doc_id": doc_id, "sample": sample, "position": position.place, "kind": position.kind}
    drawn = {"host_token_id": position.host_token, "donor_token_id": position.donor_token, "score": position.scores[-1]}
    measured = {"inclusion": position.inclusion} | effects.measure_position(host, donor) | values
    measured["place"] = position.place / position.length
    behind = {"host": texts[:half], "donor": texts[half:]}
    inner = {"problem": f"{task} {doc_id}", "host": host, "donor": donor, "begun": position.begun, "texts": behind}
    return named | drawn | measured | inner


TEXTS = "effect_texts.parquet"
_MOST = 10  # examples of either sign
_CONTEXT, _BEHIND = 400, 1500  # characters before and behind a position that are shown
_INNER = ("problem", "host", "donor")  # of a row, not of the table
_NAME = ("task", "doc_id", "sample", "position")
EffectRow = Mapping[str, Any]


def write_effects(
    folder: Path, run: RunReader, tokenizer: Any, rows: Sequence[EffectRow], signals: Sequence[str], after: str, *, exact: bool
) -> None:
    """Write and print the effects of `rows`, of which one kind stands together; `signals` are columns to hold them against."""
    positions = pl.DataFrame([{name: row[name] for name in row if name not in ("begun", "texts")} for row in rows])
    positions = effects.add_shrunk(positions, exact=exact)
    columns = list(positions.drop(_INNER).columns)
    columns.insert(columns.index("high") + 1, columns.pop())
    tables = {
        "effects": positions.select(columns),
        "effect_by_score": effects.tabulate_by_score(positions, signals),
        "effect_summary": effects.tabulate_summary(positions, exact=exact),
        "effect_auroc": effects.tabulate_auroc(positions, signals, exact=exact),
    }
    examples = [_describe_example(row, tokenizer) for row in _choose_examples(rows, positions["shrunk"].to_list())]
    identities = {task: run.identify(task) for task in run.tasks}  # of what was asked, as results have it
    told = {"run": run.label, "host": run.host, "donor": run.donor, "identities": identities, "after": after}
    with writing("out", folder), replacing(folder, effects.EXAMPLES) as unfinished:
        for name, table in tables.items():
            write_analysis(unfinished, name, table)
        texts = pl.DataFrame([text for row in rows for text in _list_texts(row)])
        write_whole(unfinished / TEXTS, lambda stream: texts.write_parquet(stream))
        write_text(unfinished / effects.EXAMPLES, json.dumps({**told, "positions": examples}, indent=1) + "\n")
    print(_show_summary(tables["effect_summary"], run, after))
    print(_show_auroc(tables["effect_auroc"]))
    print(f"{', '.join(tables)} -> {folder}")


def _list_texts(row: EffectRow) -> Iterator[dict[str, Any]]:
    """The continuations of both tokens of a position: ids from the forced token on."""
    for writer, texts in row["texts"].items():
        for place, (text, correct) in enumerate(zip(texts, row[writer], strict=True)):
            facts = {"writer": writer, "continuation": place, "correct": correct, "truncated": text.response.truncated}
            yield {name: row[name] for name in _NAME} | facts | {"token_ids": text.tokens}


def _choose_examples(rows: Sequence[EffectRow], shrunk: Sequence[float]) -> list[EffectRow]:
    """The takeovers of the largest effects of either sign, less what is noise; of equal ones the first."""
    takeovers = [(value, row) for value, row in zip(shrunk, rows, strict=True) if row["kind"] == effects.TAKEOVER]
    ordered = sorted(takeovers, key=lambda pair: -pair[0])
    helpful = [row for value, row in ordered if value > 0 and row["effect"] > 0][:_MOST]
    return helpful + [row for value, row in ordered[::-1] if value < 0 and row["effect"] < 0][:_MOST]


def _describe_example(row: EffectRow, tokenizer: Any) -> dict[str, Any]:
    before = tokenizer.decode(row["begun"])
    described = {name: row[name] for name in (*_NAME, "score", "effect", "low", "high")}
    described |= {"before": before[-_CONTEXT:], "clipped": len(before) > _CONTEXT}
    for role, texts in row["texts"].items():
        behind = [
            {"text": text.response[len(before) :][:_BEHIND], "correct": correct}
            for text, correct in zip(texts, row[role], strict=True)
        ]
        described[role] = {"token": tokenizer.decode([row[f"{role}_token_id"]]), "behind": behind}
    return described


def _show_summary(table: pl.DataFrame, run: RunReader, after: str) -> str:
    alone = table["task"].n_unique() == 2  # one task, and all
    rows = [
        [
            row["kind"] if row["task"] == effects.ALL else f"{row['kind']}, {row['task']}",
            str(row["positions"]),
            show_figure(row["effect"], "+.1f", 100, row["low"], row["high"]),
            *(show_figure(row[name], ".0%", 1, row[f"{name}_low"], row[f"{name}_high"]) for name in ("helpful", "harmful")),
            show_figure(row["share_for_80"], ".0%"),
        ]
        for row in table.iter_rows(named=True)
        if row["task"] == effects.ALL or not alone
    ]
    then = f"the {run.host} writes alone" if after == "base" else "the run goes on with its gate"
    notes = [
        f"Takeovers help where Effect is above 0: correct texts behind the {run.donor}'s token minus those behind the "
        f"{run.host}'s, in points. After it {then}.",
        f"Helpful, harmful: share of positions with an effect beyond {100 * effects.LARGE:.0f} points, less the noise of "
        f"continuations. 80 % at: the share of positions with 80 % of the gain. In brackets 95 % intervals over problems.",
    ]
    return write_terminal(Table(["Kind", "Tried", "Effect", "Helpful", "Harmful", "80 % at"], rows, notes))


def _show_auroc(table: pl.DataFrame) -> str:
    kinds = table["kind"].unique(maintain_order=True).to_list()
    known = table.filter((pl.col("low") > 0.5) | (pl.col("high") < 0.5)).select("score", "kind", "auroc", "low", "high")
    cells = {(score, kind): show_figure(area, ".2f", 1, low, high) for score, kind, area, low, high in known.iter_rows()}
    scores = known["score"].unique(maintain_order=True).to_list()
    rows = [[score, *(cells.get((score, kind), "") for kind in kinds)] for score in scores]
    found = (
        f"AUROC of each score for an effect above {100 * effects.LARGE:.0f} points, where its interval (95 %, over problems)"
    )
    note = f"{found} leaves 0.5, which is chance{'' if rows else ': none does'}."
    return write_terminal(Table(["Score", *kinds], rows, [note]))
