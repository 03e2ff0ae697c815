"""`calibrate` from its options to the file and the page that it writes: lines 3 and 4 of Algorithm 1, tau and kappa."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.backends import open_backend
from lm_eval_takeover.calibration.files import (
    KAPPA_RULES,
    LOWEST,
    TOLERANCE,
    Calibration,
    ScoreCalibration,
    list_arguments,
    read_calibration,
    write_calibration,
)
from lm_eval_takeover.calibration.tuning import Method
from lm_eval_takeover.commands._options import read_loading
from lm_eval_takeover.commands._output import Table, write_file, write_markdown, write_terminal, writing
from lm_eval_takeover.commands.calibrate.prompts import TaskForm, load_task_form, read_prompts
from lm_eval_takeover.commands.calibrate.rollouts import (
    MOST,
    HeldOutRollouts,
    Rollouts,
    Setup,
    check_target,
    collect,
    open_rollouts,
    solve,
)
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate, fires_along
from lm_eval_takeover.method.named import find_policy, parse_word
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, TASK_SAMPLING
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.pair.policy_choice import keep_read, open_method, parse_arguments
from lm_eval_takeover.tasks.context import Evaluation, get_evaluation

logger = logging.getLogger(__name__)

Wanted = tuple[Method, Sequence[float]]  # and the realized rates to solve its budget parameter for
PRECISION = 0.01  # of a realized rate, below which a warning says how many prompts are needed
VLLM_GROUP = 512  # rollouts between which a calibration can be interrupted; vLLM batches what fits
_LONG = ("indices", "held_out_indices", "template_digest", "problems")  # of prompts; left to the file
_SPREAD = 0.6  # below, a pair differs in form: 0.86 of a pair of one form, measured in docs/real-model.md


def measure(options: argparse.Namespace) -> int:
    """Writes a calibration; returns the exit status. Raises ArgumentError."""
    methods = read_methods(options)
    form = load_task_form(options.task, options.include_path, chat=options.apply_chat_template) if options.task else None
    setup = _prepare(options, form)
    scorers = [scorer for method, _ in methods if (scorer := method.policy.scorer)]
    shown = list(dict.fromkeys([*options.score, *(scorer.name for scorer in scorers)])) or ["ce"]
    others = registered.installed()  # of these only what is asked for
    scores = [s for s in registered if s.source.digest is None or s.name in shown or s.name not in others]
    rates = sum(len(of_method) for _, of_method in methods)
    tries = MOST * rates * len(setup.prompts.held_out)
    solving = f", then up to {tries:,} of held-out prompts ({rates} x {MOST} tries)" if tries else ""
    fewer = "fewer prompts are a quicker first try (--num_prompts, --num_held_out)"
    most = f"at most {setup.max_gen_toks:,} tokens each"
    print(f"{len(setup.prompts.texts):,} rollouts{solving}, {most}; {fewer}", file=sys.stderr)
    with open_rollouts(setup, options.out, scores) as rollouts:
        calibration = calibrate(setup, methods, known=_read_known(options, setup, scores), rollouts=rollouts)
        calibration = replace(calibration, name=options.out.stem)
        if options.out.exists() and not (options.overwrite or options.extend):
            raise ArgumentError(f"--out: another command wrote '{options.out}' meanwhile; to replace it, --overwrite")
        left = "what was measured is kept"
        write_file("out", options.out.with_suffix(".md"), render_page(calibration, str(options.out), shown), left)
        with writing("out", options.out, left):  # last: a killed call goes on where this file is missing
            write_calibration(calibration, options.out)
        rollouts.close(keep=False)
    print(write_terminal(rate_table(calibration, shown)))
    if calibration.targets:
        print(write_terminal(target_table(calibration)))
    for target in (target for target in calibration.targets if not target.is_reached):
        print(
            f"no {target.budget_parameter} of {target.name} realizes {target.target_rate:.1%} ± {TOLERANCE:.1%} on the prompts "
            f"that it was solved on; the nearest one, {target.value:.4g}, realizes {target.nearest_rate:.2%}"
        )
    print(f"{describe_rollouts(calibration)} -> {options.out}, {options.out.with_suffix('.md')}")
    print("".join(f"{line}\n" for line in list_limits(calibration)), end="")
    return 0


def _prepare(options: argparse.Namespace, form: TaskForm | None) -> Setup:
    """The pair, its prompts and how rollouts are drawn: as the options say, else as the task does, else as our tasks."""
    given = {"batch_size": options.batch_size, "direction": options.direction}
    arguments = ModelArguments.parse({**given, **read_loading(options)})
    usual = form.sampling if form else TASK_SAMPLING
    changes = {name: value for name in asdict(usual) if (value := getattr(options, name)) is not None}
    sampling = replace(usual, **changes)
    evaluation = get_evaluation() or Evaluation()
    pair = load_pair(arguments, evaluation.pairs)

    def chat(text: str) -> str:
        return pair.chat_prompt([{"role": "user", "content": text}], enable_thinking=options.enable_thinking)

    forms = ("split", "field", "seed", "enable_thinking", "diagnostic")
    prompts = read_prompts(
        options.prompts,
        task=form,
        count=options.num_prompts,
        held_out=options.num_held_out if options.target_rate or options.methods else 0,
        chat=chat if options.apply_chat_template else None,
        **{name: getattr(options, name) for name in forms},
    )
    if (options.target_rate or options.methods) and not prompts.held_out:
        raise ArgumentError(f"--target_rate needs held-out prompts: give 5 or more, not {len(prompts.texts)}")
    return Setup(
        backend=open_backend(arguments, pair, Disagreement(direction=arguments.direction, gate=Gate(0.0))),
        prompts=prompts,
        sampling=sampling,
        max_gen_toks=options.max_gen_toks or (form.max_gen_toks if form else TASK_MAX_GEN_TOKS),
        until=form.until if form else (),
        seed=options.seed,
        batch_size=VLLM_GROUP if arguments.backend == "vllm" else arguments.rows,
        window=options.window,
        bars=evaluation.bars,
    )


def read_methods(options: argparse.Namespace) -> list[Wanted]:
    """Those of `--methods`, else of every `--score`, with their rates. Raises ArgumentError for what cannot be calibrated."""
    methods = []
    usual = {name: getattr(options, name) for name in ("direction", "kappa_rule", "window")} | {"target_rate": 0.5, "rate": 0.5}
    for word in options.methods or options.score or ["ce"] if options.target_rate or options.methods else []:
        named = parse_word("methods", word)
        own = find_policy("methods", named.name) | dict(named.arguments)
        values = keep_read(usual, own["policy"]) | {"plugins": options.plugins} | own
        method = open_method(parse_arguments(values))
        _ = method.budget_parameter  # raises where it has none
        methods.append((method, named.rates or options.target_rate))
    return methods


def _read_known(options: argparse.Namespace, setup: Setup, scores: Sequence[Score]) -> Calibration | None:
    """With `--extend`, what is in the file already; None where it was measured with other settings."""
    if not options.extend or not options.out.exists():
        return None
    known = read_calibration(options.out)
    same = all(_plain(value) == _plain(getattr(known, name)) for name, value in setup.describe().items())
    digests = {name: score.plugin and score.plugin["digest"] for name, score in known.scores.items()}
    if same and {score.name: score.source.digest for score in scores}.items() <= digests.items():
        return known
    print(f"'{options.out}' was measured with other settings, and is measured again", file=sys.stderr)
    return None


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=asdict))


def calibrate(
    setup: Setup, wanted: Sequence[Wanted] = (), *, known: Calibration | None = None, rollouts: Rollouts | None = None
) -> Calibration:
    """Score one rollout of the host per prompt, read tau and kappa off the scores, and solve methods for realized rates.

    What is finished stays in `rollouts` (`open_rollouts`), so that the same call goes on after a kill. If no value of a budget
    parameter realizes a rate, the nearest is taken. The scores of `known`, a calibration with this setup, are taken over, and
    only the rates that it lacks are solved for.
    """
    if setup.pair.member("base").id.same_model(setup.pair.member("guide").id):
        logger.warning("base and guide are the same model: every ce equals the entropy, and rkl and js are 0")
    rollouts = rollouts or Rollouts(list(registered))
    calibration = known or _measure_thresholds(setup, rollouts)
    return _solve_rates(setup, calibration, wanted, rollouts) if wanted else calibration


def _measure_thresholds(setup: Setup, rollouts: Rollouts) -> Calibration:
    collect(setup, rollouts)
    scores = {score.name: _calibrate_score(score, rollouts.of(score.name), setup.window) for score in rollouts.scores}
    count, cut = len(rollouts.done), sum(one.cut for one in rollouts.done.values())
    if cut:  # thresholds lack the scores of the tokens that were cut
        text = "%d of %d rollouts (%.1f%%) did not end within --max_gen_toks %d or the context, and were cut"
        logger.warning(text, cut, count, 100 * cut / count, setup.max_gen_toks)
    tokens = sum(map(len, rollouts.of(next(iter(scores)))))
    counts: dict[str, Any] = {"rollouts": count, "tokens": tokens, "cut": cut, "window": setup.window}
    return Calibration(**setup.describe(), **counts, scores=scores)


def _calibrate_score(score: Score, rows: Sequence[NDArray[np.float32]], window: int) -> ScoreCalibration:
    """Thresholds, and by (rho, kappa rule) the share of tokens at which the gate fires, in rollouts without takeovers."""
    held = ScoreCalibration.of(np.concatenate(rows), signed=score.signed)
    if held.mean == 0:
        logger.warning("all %s scores are 0: its gate fires on every score above 0", score.name)
    if score.source.digest is not None:
        held = replace(held, plugin={"source": score.source.name, "digest": score.source.digest})
    gates = {(row["rho"], rule): Gate(row["tau"], row[f"kappa_{rule}"], window) for row in held.table for rule in KAPPA_RULES}
    texts, tokens = [torch.from_numpy(row) for row in rows], sum(map(len, rows))
    fired = {key: sum(int(fires_along(gate, text).sum()) for text in texts) for key, gate in gates.items()}
    return held.with_shares({key: number / tokens for key, number in fired.items()})


@torch.inference_mode()
def _solve_rates(setup: Setup, calibration: Calibration, wanted: Sequence[Wanted], rollouts: Rollouts) -> Calibration:
    """The calibration with the targets that it lacks, measured on the held-out prompts."""
    requests = setup.make_requests(setup.prompts.held_out, setup.prompts.source["held_out_indices"])
    targets = list(calibration.targets)
    for method, rates in wanted:
        missing = [rate for rate in rates if not any(target.answers(rate, method.settings) for target in targets)]
        folds = [HeldOutRollouts(setup, half, calibration, method) for half in (requests[::2], requests[1::2]) if half]
        solved = list(solve(folds[0], missing, rollouts))
        targets += [check_target(target, folds[1], rollouts) for target in solved] if len(folds) > 1 else solved
    for target in targets:
        reach = (target.high - target.low) / 2 if target.high is not None and target.low is not None else 1.0
        if reach > PRECISION:
            needed = ceil(2 * target.prompts * (reach / PRECISION) ** 2 / 10) * 10
            logger.warning(
                "%s at %.1f%%: the realized rate is known within ±%.1f points from %d prompts; for ±%g about %d are needed "
                "(--num_held_out)", target.name, 100 * target.target_rate, 100 * reach, target.prompts, 100 * PRECISION, needed,
            )  # fmt: skip
    return replace(calibration, targets=tuple(targets))


def rate_table(calibration: Calibration, scores: Sequence[str] | None = None) -> Table:
    """tau, both kappas and the replayed shares of takeovers by score and spike ratio."""
    columns = ["score", "spike ratio", "mean (nats)", "tau (nats)"]
    columns += ["kappa", "takeovers", "tail kappa", "tail takeovers"]  # in the order of KAPPA_RULES
    rows = []
    for score in scores or calibration.scores:
        for row in calibration.scores[score].table:
            cells = [score, f"{row['rho']:.1%}", f"{calibration.scores[score].mean:.4g}", f"{row['tau']:.4g}"]
            for rule in KAPPA_RULES:
                share = row.get(f"share_{rule}")
                cells += [f"{row[f'kappa_{rule}']:.4g}", "-" if share is None else f"{share:.2%}"]
            rows.append(cells)
    note = (
        f"Spike ratio: the share of these tokens above tau. Takeovers: the share at which the gate fires on these texts, with "
        f"its test against the last {calibration.window} scores. Tail: with kappa_rule=tail_to_mean. A run realizes another "
        f"rate: each takeover changes what follows."
    )
    return Table(columns, rows, [note], names=2)


def target_table(calibration: Calibration) -> Table:
    columns = ["method", "argument", "target rate", "value", "realized on held-out prompts", "prompts", "tokens"]
    rows = []
    for target in calibration.targets:
        rates = f"{target.target_rate:.1%}", f"{target.value:.5g}", target.describe_rate()
        rows.append([target.name, target.budget_parameter, *rates, str(target.prompts), f"{target.tokens:,}"])
    return Table(columns, rows, names=2)


def describe_rollouts(calibration: Calibration) -> str:
    rollouts, prompts = calibration.rollouts or 0, calibration.prompts.get("asked")
    fewer = f" ({prompts} prompts were asked for)" if prompts and prompts != rollouts else ""
    cut = calibration.cut or 0
    share = f"; {cut} of them ({cut / rollouts:.1%}) were cut at their limit" if cut else ""
    return f"{rollouts} rollouts{fewer}, {calibration.tokens or 0:,} tokens{share}"


def list_limits(calibration: Calibration) -> list[str]:
    lines = []
    if calibration.diagnostic:
        lines.append(f"Measured on problems of {', '.join(calibration.diagnostic)}; runs on these refuse it.")
    if calibration.tokens and (least := 30 / calibration.tokens) > LOWEST:
        lines.append(f"few tokens: below a spike ratio of {least:.2g}, fewer than 30 of them lie above tau")
    lines += [
        f"{target.name}: {target.target_rate:.1%} was asked for, other prompts realize {target.low:.2%} to {target.high:.2%}; "
        f"more of them (--num_held_out) find a nearer value"
        for target in calibration.targets
        if target.low is not None and target.high is not None and not target.low <= target.target_rate <= target.high
    ]
    if (held := peak_share(calibration)) < _SPREAD:
        lines.append(
            f"ce is spread over the text: the tenth of the tokens with the highest ce holds {held:.0%} of it. Base and guide may "
            f"write different forms, and then few takeovers help little (docs/real-model.md)"
        )
    return lines


def peak_share(calibration: Calibration) -> float:
    """The share of all ce at the tenth of the tokens where it is highest: 1.00 of the demo pair; 1 where there is no ce."""
    held = calibration.scores.get("ce")
    return 0.1 * held.threshold(0.1)["kappa_tail_to_mean"] if held is not None and held.mean else 1.0


def render_page(calibration: Calibration, path: str, scores: Sequence[str] | None = None) -> str:
    """The page of a measured calibration as Markdown; `path` is that of the file, `scores` those that were asked for."""
    rate = ""
    if calibration.targets:  # the first rate that was solved for, and its method, as model arguments
        target = calibration.targets[0]
        arguments = {"target_rate": f"{target.target_rate:g}", **list_arguments(target.method)}
        rate = " with " + ", ".join(f"`{name}={value}`" for name, value in arguments.items())
    parts = [
        f"# Calibration `{calibration.name}`",
        "Thresholds of the takeover gate for one pair of models, made by `lm-eval-takeover calibrate`.",
        f"Use it as the model argument `calibration={path}`{rate}.",
        write_markdown(Table(["", ""], _list_facts(calibration), list_limits(calibration), names=2)),
        "## Rates",
        write_markdown(rate_table(calibration, scores)),
    ]
    if calibration.targets:
        parts += ["Rates solved for on held-out prompts (`target_rate=…`):", write_markdown(target_table(calibration))]
    if calibration.notes:
        parts += ["## Notes", calibration.notes]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _list_facts(calibration: Calibration) -> list[list[str]]:
    facts: dict[str, Any] = {"base": calibration.base, "guide": calibration.guide, "direction": calibration.direction}
    for group in ("vocabulary", "prompts", "decoding", "dtypes"):
        facts |= {f"{group} {name}": value for name, value in getattr(calibration, group).items() if name not in _LONG}
    facts["rollouts"] = describe_rollouts(calibration)
    shown = {name: ", ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    return [[name, str(value)] for name, value in shown.items() if value not in (None, "")]
