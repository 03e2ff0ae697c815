"""Renders the page: tables, figures, data and rollouts in a template, under a content security policy."""

import argparse
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_file
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal, make_page_policy
from lm_eval_takeover.lab.analysis.figures import DRAWN
from lm_eval_takeover.lab.report.figures import CAPTIONS, read_figure
from lm_eval_takeover.lab.report.inputs import Analysis, Effects, read_effects
from lm_eval_takeover.lab.report.rollouts import list_picks, pack_picks
from lm_eval_takeover.lab.report.story import Story, tell_story
from lm_eval_takeover.lab.report.summary import find_k, list_columns, list_rows
from lm_eval_takeover.pair.pieces import Pieces
from lm_eval_takeover.runs.layout import SAMPLES
from lm_eval_takeover.runs.run_reader import Answered, RunReader

MAX_PROBLEM, MAX_ANSWER = 20_000, 2_000  # characters that are shown of one
_BLOCK = len('<script type="text/plain" data-rollout="00000"></script>\n')
_PAGE = files("lm_eval_takeover.lab.report") / "page"


def build(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ArgumentError for what cannot be read or written, or does not fit."""
    analysis = Analysis.read(options.analysis)
    changes = count_changes(analysis)
    groups = list_picks(analysis, changes)
    index = make_index(analysis)
    effects = read_effects(options.effects) if options.effects else None
    pieces = _load_pieces(analysis, options.tokenizer)
    story = tell_story(analysis, pieces, groups)
    page = render(analysis, index, [], 0, effects, story)
    limit = int(options.max_size * 1e6)
    total = len({(name, sample.stored.key) for group in groups for name, sample in group})
    # The index gains a number for each rollout that is embedded, and each has a block of its own.
    room = limit - len(page.encode()) - total * (_BLOCK + 6)
    if room < 0:
        raise ArgumentError(
            f"--max_size {options.max_size}: the page needs {(limit - room) / 1e6:.1f} MB before any answer is in it; allow more"
        )
    packed = pack_picks(analysis, groups, pieces, choose_score(analysis), room)
    blocks = _place(analysis, index, packed)
    write_file("out", options.out, render(analysis, index, blocks, total, effects, story))
    print(f"{len(blocks):,} of {total:,} answers, {options.out.stat().st_size / 1e6:.1f} MB -> {options.out}")
    return 0


def count_changes(analysis: Analysis) -> dict[tuple[str, int], int]:
    """By problem how many samples more the compared run has right than the base; of problems that both have."""
    base, compared = (analysis.samples.get(name or "", {}) for name in (analysis.base, analysis.compared))
    return {
        key: sum(sample.correct for sample in compared[key]) - sum(sample.correct for sample in base[key])
        for key in base.keys() & compared.keys()
    }


def choose_score(analysis: Analysis) -> str:
    """By which base rollouts are tinted: as the compared run's gate decides."""
    run = analysis.runs.get(analysis.compared or "")
    return str((run.takeover.get("score") if run else None) or "ce")


def _load_pieces(analysis: Analysis, tokenizer: str | None) -> dict[str, Pieces]:
    """By run; one for runs that name one tokenizer."""
    loaded: dict[tuple[Any, Any], Pieces] = {}
    pieces = {}
    for name, run in analysis.runs.items():
        key = run.arguments.get("guide"), run.arguments.get("base")
        if key not in loaded:
            loaded[key] = Pieces(run.load_tokenizer(tokenizer))
        pieces[name] = loaded[key]
    return pieces


def make_index(analysis: Analysis) -> dict[str, Any]:
    """The page's data on all samples, embedded or not."""
    names = list(analysis.runs)
    outcomes: dict[str | None, int] = {}
    problems = []
    for key in analysis.problems:
        prompts = next((run.prompts[key] for run in analysis.runs.values() if key in run.prompts), [])
        prompt = prompts[0] if prompts else {"problem": None, "answer": None}
        texts = {"problem": _clip(prompt["problem"], MAX_PROBLEM), "gold": _clip(prompt["answer"], MAX_ANSWER)}
        runs = [[_describe_sample(sample, outcomes) for sample in analysis.samples[name].get(key, [])] for name in names]
        problems.append({"task": key[0], "doc": key[1], **texts, "runs": runs})
    return {
        "runs": [_describe_run(name, run) for name, run in analysis.runs.items()],
        "base": names.index(analysis.base) if analysis.base else None,
        "compared": names.index(analysis.compared) if analysis.compared else None,
        "score": choose_score(analysis),
        "outcomes": list(outcomes),
        "problems": problems,
    }


def _describe_run(name: str, run: RunReader) -> dict[str, Any]:
    settings = {key: run.takeover.get(key) for key in ("tau", "kappa", "window", "score")}
    return {"name": name, "policy": run.policy, "host": run.host, "donor": run.donor, **settings}


def _describe_sample(sample: Answered, outcomes: dict[str | None, int]) -> list[Any]:
    """`[sample, outcome, answer, cut off, tokens, takeovers]`; the number of its rollout is appended later."""
    outcome, stored = outcomes.setdefault(sample.outcome, len(outcomes)), sample.stored
    answer = _clip(sample.answer, MAX_ANSWER)
    return [sample.sample, outcome, answer, int(stored.truncated), stored.tokens, stored.takeovers]


def _clip(text: str | None, limit: int) -> str | None:
    if text is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text) - limit:,} characters more)"


def _place(analysis: Analysis, index: dict[str, Any], packed: Mapping[tuple[str, bytes], str]) -> list[str]:
    """The blocks of the page; the index learns which of them a sample's is."""
    places = {key: place for place, key in enumerate(packed)}
    for problem, key in zip(index["problems"], analysis.problems, strict=True):
        for name, described in zip(analysis.runs, problem["runs"], strict=True):
            for row, sample in zip(described, analysis.samples[name].get(key, []), strict=True):
                if (place := places.get((name, sample.stored.key))) is not None:
                    row.append(place)
    return list(packed.values())


def render(
    analysis: Analysis,
    index: Mapping[str, Any],
    blocks: list[str],
    total: int,
    effects: Effects | None = None,
    story: Story | None = None,
) -> str:
    style, script = _read("report.css"), _read("report.js")
    temml = f"/*! {_read('temml.LICENSE')}*/\n{_read('temml.min.js')}"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = for_terminal
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    reasons: dict[str, list[str]] = {}
    for name, reason in analysis.cannot_show.items():
        reasons.setdefault(reason, []).append(name)
    return environment.from_string(_read("report.html.jinja")).render(
        version=__version__,
        policy=make_page_policy([temml, script], style),
        style=Markup(style),
        scripts=[Markup(temml), Markup(script)],
        runs=[_describe_run(name, run) for name, run in analysis.runs.items()],
        columns=list_columns(find_k(analysis)),
        rows=list_rows(analysis),
        figures=[(path.stem, CAPTIONS[path.stem], read_figure(path)) for path in list_figures(analysis)],
        effects=effects,
        story=story,
        captions=CAPTIONS,
        reasons={", ".join(names): reason for reason, names in reasons.items()},
        index=index,
        blocks=blocks,
        total=total,
    )


def list_figures(analysis: Analysis) -> list[Path]:
    """The frontier of the comparison that the runs are rows of, then the figures of the analysis."""
    rows = {run.folder.absolute().parent for run in analysis.runs.values() if run.folder.name == SAMPLES}
    frontiers = sorted(path for path in {row.parent / "frontier.svg" for row in rows} if path.exists())
    return [*frontiers[:1], *(analysis.folder / f"{name}.svg" for name in analysis.names if name in DRAWN and name in CAPTIONS)]


def _read(name: str) -> str:
    text = (_PAGE / name).read_text(encoding="utf-8")
    return text if name.endswith(".jinja") else text.replace("\r\n", "\n")
