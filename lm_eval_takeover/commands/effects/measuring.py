"""`effects` from the run_dir to the tables: choose positions, force both tokens, continue, judge."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lm_eval_takeover.analysis.effects import measure_position
from lm_eval_takeover.commands._stored_pair import Readers, restore_arguments
from lm_eval_takeover.commands.effects.continuing import Writer
from lm_eval_takeover.commands.effects.positions import (
    LAST,
    Position,
    choose_takeovers,
    draw_numbers,
    list_control_candidates,
)
from lm_eval_takeover.commands.effects.tables import describe_cost, write_effects
from lm_eval_takeover.commands.effects.verdicts import judge, load_tasks
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, Request
from lm_eval_takeover.pair.loading import load_policy, parse_arguments
from lm_eval_takeover.pair.pair import DEFAULT_MAX_LENGTH, Pair
from lm_eval_takeover.runs.run_reader import RunReader, read_run_folder
from lm_eval_takeover.tasks.instances import read_generation_settings
from lm_eval_takeover.tasks.responses import Response

_POLICY = ("policy", "score", "score_top_p", "direction", "rate", "early_tokens")
_MOST_ASKED = 20  # candidates that are asked for a control, at most
_AT_ONCE = 4  # and of them at a time


def measure(options: argparse.Namespace, given: Mapping[str, Any]) -> int:
    """Returns the exit status. Raises ArgumentError for a run that effects cannot be measured on."""
    run = read_run_folder(options.run_dir)
    run.check_finished()
    if run.written_by is not None:
        raise ArgumentError(
            f"run_dir='{run.folder}' was written by the {run.written_by} alone; effects need a guided run"
        )
    forms = {task: _read_form(run, task) for task in run.tasks}
    takeovers, known = choose_takeovers(run, options.takeovers, options.seed)
    if all(form.sampling.temperature == 0 for form in forms.values()) and options.continuations > 1:
        print("decoding is greedy: one continuation after each token is enough")
        options.continuations = 1
    print(for_terminal(describe_cost(run, takeovers, known, options)))
    if options.dry_run:
        return 0
    tasks = load_tasks(run, sorted({one.one.task for one in takeovers}), options.include_path)
    arguments = restore_arguments(run, given)
    readers = Readers(arguments)
    seed, trusted = int(run.settings.get("seed") or 0), arguments.trust_remote_code
    writer = Writer.open(options.out / "continuations", readers.backend, readers.pair, seed, trusted)
    host, donor = run.host, run.donor
    try:
        room = int(run.arguments.get("max_length") or readers.pair.max_length or DEFAULT_MAX_LENGTH)
        continuing = Continuing(forms, room, options.continuations)
        after = ALONE[host]() if options.after == "base" else _load_run_policy(run, readers.pair, given.get("plugins"))
        takeovers = [one for one in takeovers if continuing.has_room(one)]
        controls = _choose_controls(run, writer, ALONE[donor](), continuing, options) if options.controls else []
        positions = [*takeovers, *controls]
        texts = writer.respond(after, [request for one in positions for request in continuing.requests(one)])
        seen = list(_compare(readers, positions))
    finally:
        writer.run.close()
        readers.close()
    each = 2 * options.continuations
    behind = {one: texts[number * each : (number + 1) * each] for number, one in enumerate(positions)}
    verdicts = _judge(run, tasks, behind)
    rows = [
        _describe(one, values, verdicts[one], behind[one]) | {"rank": values[f"{host}_rank_of_donor"]}
        for one, values in zip(positions, seen, strict=True)
    ]
    write_effects(options.out, run, readers.pair.tokenizer, rows, [*registered.names(), "rank", "place"], options.after)
    return 0


class Continuing:
    """The requests behind a position. `forms` have a task's decoding, `room` is the context in tokens."""

    def __init__(self, forms: Mapping[str, Request], room: int, count: int) -> None:
        self.forms, self.room, self.count = forms, room, count

    def limit(self, one: Position) -> int:
        """Tokens of the whole text, at most."""
        return min(self.forms[one.one.task].max_new_tokens, self.room - len(one.prompt))

    def has_room(self, one: Position) -> bool:
        """Whether a token may follow the forced one."""
        return one.place + 1 < self.limit(one)

    def requests(self, one: Position) -> list[Request]:
        """Behind the host's token, then behind the donor's, with the same numbers."""
        form = replace(
            self.forms[one.one.task],
            prompt=one.prompt,
            max_new_tokens=self.limit(one),
            begun_scores=one.scores,
            label=one.label,
        )
        return [
            replace(form, sample=draw_numbers(one, number), begun=(*one.begun, token))
            for token in one.tokens
            for number in range(self.count)
        ]

    def next_token(self, one: Position) -> Request:
        """What draws another token for the position itself, with numbers of its own."""
        form = self.forms[one.one.task]
        return replace(
            form,
            prompt=one.prompt,
            sample=draw_numbers(one, LAST),
            begun=one.begun,
            max_new_tokens=one.place + 1,
            label=one.label,
        )


def _read_form(run: RunReader, task: str) -> Request:
    """How a task's samples are drawn: a request without its prompt. Raises ArgumentError where the run does not say."""
    settings = run.decoding.get(task)
    if settings is None:
        raise ArgumentError(
            f"run_dir='{run.folder}' does not say how task '{task}' was decoded, or says it in two ways"
        )
    most = int(run.arguments.get("max_gen_toks") or TASK_MAX_GEN_TOKS)
    sampling, until, most = read_generation_settings(settings, most)
    return Request((0,), 0, most, sampling, until, task)


def _load_run_policy(run: RunReader, pair: Pair, plugins: str | None) -> Policy:
    """The run's own policy with the gate that it had. Plug-ins are those of the command line: a folder names no code to run."""
    if run.arguments.get("plugins") and plugins is None:
        raise ArgumentError(
            f"the run in '{run.folder}' was made with plugins={run.arguments['plugins']}, which are not taken from a folder; "
            f"where you trust them, give --plugins {run.arguments['plugins']}"
        )
    given = {name: run.arguments.get(name) for name in _POLICY} | dict(run.arguments.get("policy_arguments") or {})
    given |= {name: run.takeover.get(name) for name in ("tau", "kappa", "window")} | {"plugins": plugins}
    policy, _ = load_policy(parse_arguments({name: value for name, value in given.items() if value is not None}), pair)
    if policy.reads_text:  # who wrote each token before the forced one is not handed on
        raise ArgumentError(
            f"--after gate cannot continue texts of policy={policy.name}, which depends on who wrote the tokens before; "
            "use --after base"
        )
    return policy


def _choose_controls(
    run: RunReader, writer: Writer, donor: Policy, continuing: Continuing, options: argparse.Namespace
) -> list[Position]:
    """Positions that the host wrote and where the donor, asked with fresh random numbers, draws another token.

    With the run's own numbers both would draw the same of several tokens that are as good, and no choice of style were a control.
    """
    samplings = {task: form.sampling for task, form in continuing.forms.items()}
    found: list[Position] = []
    asked = 0
    for candidates in list_control_candidates(run, samplings, _AT_ONCE * options.controls, options.seed):
        open_ones = [one for one in candidates if continuing.has_room(one)]
        drawn = writer.draw(donor, [continuing.next_token(one) for one in open_ones])
        found += [
            replace(one, donor_token=token)
            for one, token in zip(open_ones, drawn, strict=True)
            if token != one.host_token
        ]
        asked += len(candidates)
        if len(found) >= options.controls or asked >= _MOST_ASKED * options.controls:
            break
    if len(found) < options.controls:
        print(
            f"{len(found)} controls, not {options.controls}: where the host wrote, the donor seldom draws another token"
        )
    return found[: options.controls]


def _compare(readers: Readers, positions: Sequence[Position]) -> Iterator[dict[str, Any]]:
    """Every registered score of each position, and what both models think of its two tokens, in nats."""
    scores = list(registered)
    asked = [(one, token) for one in positions for token in one.tokens]
    longest = max(len(one.prompt) + one.place + 1 for one in positions)
    rows, values = readers.backend.fit_rows(longest), list[dict[str, Any]]()
    for start in range(0, len(asked), rows):
        part = asked[start : start + rows]
        values += readers.backend.compare(
            scores,
            [(*one.prompt, *one.begun) for one, _ in part],
            [[token] for _, token in part],
            [one.label for one, _ in part],
        )
    for of_host, of_donor in zip(values[::2], values[1::2], strict=True):
        found = {score.name: float(of_host[score.name][0]) for score in scores}
        for role in ("base", "guide"):
            for name, own in (("host", of_host), ("donor", of_donor)):
                found[f"{role}_logprob_of_{name}"] = float(own[f"{role}_logprob"][0])
                found[f"{role}_rank_of_{name}"] = int(own[f"{role}_rank"][0])
        yield found


def _judge(
    run: RunReader, tasks: Mapping[str, Any], behind: Mapping[Position, Sequence[Response]]
) -> dict[Position, list[bool]]:
    """A verdict on each text; all texts of a problem go to its task together."""
    responses: dict[tuple[str, int], list[Response]] = {}
    for one, texts in behind.items():
        responses.setdefault((one.one.task, one.one.doc_id), []).extend(texts)
    verdicts = {problem: iter(found) for problem, found in judge(run, tasks, responses).items()}
    return {one: [next(verdicts[one.one.task, one.one.doc_id]) for _ in texts] for one, texts in behind.items()}


def _describe(
    one: Position, values: Mapping[str, Any], verdicts: Sequence[bool], texts: Sequence[Response]
) -> dict[str, Any]:
    """A row of `effects`, with the verdicts and texts behind either token."""
    half = len(verdicts) // 2
    host, donor = list(verdicts[:half]), list(verdicts[half:])
    return {
        "task": one.one.task,
        "doc_id": one.one.doc_id,
        "sample": one.one.sample,
        "position": one.place,
        "kind": one.kind,
        "host_token_id": one.host_token,
        "donor_token_id": one.donor_token,
        "score": one.scores[-1],
        **values,
        "place": one.place / one.length,
        **measure_position(host, donor),
        "problem": f"{one.one.task} {one.one.doc_id}",
        "host": host,
        "donor": donor,
        "begun": one.begun,
        "texts": [str(text) for text in texts],
    }
