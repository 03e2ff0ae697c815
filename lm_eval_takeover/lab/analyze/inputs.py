"""The runs that are analysed, and why an analysis of them cannot be made."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from lm_eval_takeover.errors import ArgumentError, RunDirError
from lm_eval_takeover.lab.measures.planning import TokenClasses, classify_text, classify_vocabulary
from lm_eval_takeover.lab.sample_tokens import SampleTokens
from lm_eval_takeover.pair.vocabulary import Pieces
from lm_eval_takeover.results.files import Run
from lm_eval_takeover.results.stored import tabulate_run
from lm_eval_takeover.runs.evidence import ScoresHeader, column_of
from lm_eval_takeover.runs.parquet import Name
from lm_eval_takeover.runs.run_reader import Answered, RunReader


class CannotShow(ArgumentError):
    """An analysis cannot be made of these runs; the text says why, and what would help."""


@dataclass(frozen=True)
class Inputs:
    """Runs with their names in tables. Raises CannotShow where a property asks for what is not there."""

    runs: dict[str, RunReader]
    tokenizer: str | None = None
    rollouts: str = "base"  # whose scored rollouts are analysed: base or guide
    notes: list[str] = field(default_factory=list)  # what could not be shown of an analysis that was

    @classmethod
    def name(cls, runs: Sequence[RunReader], tokenizer: str | None, rollouts: str = "base") -> "Inputs":
        """Raises RunDirError for a run that is not finished, ArgumentError for names that are not different."""
        for run in runs:
            run.check_finished()
        named = Counter(run.label for run in runs)
        own = [str(run.takeover.get("label") or run.label) for run in runs]
        names = [run.label if named[run.label] == 1 else label for run, label in zip(runs, own, strict=True)]
        if len(set(names)) < len(names):
            twice = next(name for name, count in named.items() if count > 1)
            raise ArgumentError(
                f"two of the runs are called '{twice}'; give their folders different names, or label them with model=…"
            )
        return cls(dict(zip(names, runs, strict=True)), tokenizer, rollouts)

    @cached_property
    def base_name(self) -> str:
        """The base run; the first of several."""
        return self._find_run("base")

    @cached_property
    def scored_name(self) -> str:
        return self._find_run(self.rollouts)

    def _find_run(self, role: str) -> str:
        names = [name for name, run in self.runs.items() if run.written_by == role]
        if not names:
            given = ", ".join(f"{name} (policy={run.policy})" for name, run in self.runs.items())
            raise CannotShow(
                f"it needs a {role} run, and you gave {given}; run policy={role} with the same tasks and give its folder, too"
            )
        first, *others = (self.runs[name] for name in names)
        texts = [{sample.stored.key for sample in self.runs[name].answered} for name in names]
        if texts[0] in texts[1:] or any(other.takeover.get(role) != first.takeover.get(role) for other in others):
            raise CannotShow(
                f"it needs one {role} run, or several seeds of it, and {', '.join(names)} have other models or the same seed"
            )
        return names[0]

    @property
    def scored(self) -> RunReader:
        return self.runs[self.scored_name]

    @cached_property
    def scores(self) -> ScoresHeader:
        """Models and scores of the run whose rollouts are analysed. All its texts are scored, and by these models."""
        texts = self.scored.stored_samples()
        found = [header for _, header, _ in self.scored.read_scores([], texts)]
        way_out = f"run: lm-eval-takeover score {self.scored.folder}"
        if not found:
            raise CannotShow(f"the {self.rollouts} run '{self.scored_name}' is not scored; {way_out}")
        if len(found) < len(texts):
            left = f"{len(texts) - len(found)} of {len(texts)} samples of '{self.scored_name}'"
            raise CannotShow(f"{left} are not scored yet; {way_out}")
        if other := next((header for header in found if header != found[0]), None):
            both = f"{found[0].describe()}, and with {other.describe()}"
            raise RunDirError(f"run_dir='{self.scored.folder}' was scored with {both}; score it again with --overwrite")
        return found[0]

    @cached_property
    def results(self) -> dict[str, Run]:
        """Raises CannotShow where a sample has no verdict."""
        for name, run in self.runs.items():
            if missing := sum(sample.outcome is None for sample in run.answered):
                raise CannotShow(
                    f"{missing} of {len(run.answered)} samples of '{name}' have no verdict: it was stopped before its answers "
                    f"were judged, or its tasks keep none; run the same command again"
                )
        return {name: tabulate_run(run) for name, run in self.runs.items()}

    @cached_property
    def samples(self) -> pl.DataFrame:
        """A row per sample of all runs, for `measures.outcomes`. Raises CannotShow where a sample has no verdict."""
        rows = [
            (name, *one.name, one.problem, one.correct, one.stored.tokens, one.stored.takeovers)
            for name in self.results
            for one in self.runs[name].answered
        ]
        columns = ["run", "task", "doc_id", "sample", "problem", "correct", "tokens", "takeovers"]
        return pl.DataFrame(rows, schema=columns, orient="row")

    @cached_property
    def verdicts(self) -> pl.DataFrame:
        """The same with `doc_id` that of the problem: samples that several documents of one prompt share are there once."""
        samples = self.samples.with_columns(doc_id="problem")
        return samples.unique(["run", "task", "doc_id", "sample"], keep="first", maintain_order=True)

    def guided(self, score: str | None = None) -> dict[str, RunReader]:
        """Runs in which two models write, with traces; of this score, where one is named."""
        mixed = {name: run for name, run in self.runs.items() if run.written_by is None}
        guided = {name: run for name, run in mixed.items() if score in (None, run.takeover.get("score"))}
        if not guided:
            kind = "a run in which two models write" if score is None else f"a run with score={score}"
            raise CannotShow(f"it needs {kind}, and none is given")
        return guided

    def read_traces(self, run: RunReader) -> Iterator[tuple[str, SampleTokens]]:
        """`(task, tokens)` of each sample of each task, by its problem; `takeover` says what the donor wrote."""
        names, columns = _name_texts(run), ["token_id", "chosen_from", "score", "donor_rank", "host_token_id"]
        for row, found in run.read_traces(columns):
            found["takeover"] = found["chosen_from"] == run.donor
            for name in names[row.stored.key]:
                yield name[0], SampleTokens(name, found)

    @cached_property
    def scored_names(self) -> dict[bytes, list[Name]]:
        return _name_texts(self.scored)

    def read_scores(self, samples: Sequence[Answered], codes: TokenClasses | None) -> Iterator[tuple[list[Name], SampleTokens]]:
        """The names and the scored tokens of each text. With `codes`, a column of that name has the class of each token."""
        columns = ["token_id", *map(column_of, self.scores.scores)]
        for key, _, found in self.scored.read_scores(columns, samples):
            if codes is not None:
                found["codes"] = classify_text(codes, found["token_id"])
            names = self.scored_names[key]
            yield names, SampleTokens(names[0], found)

    @cached_property
    def pieces(self) -> Pieces:
        try:
            return Pieces(self.scored.load_tokenizer(self.tokenizer))
        except ArgumentError as error:
            raise CannotShow(str(error)) from error

    @cached_property
    def codes(self) -> TokenClasses:
        return classify_vocabulary(self.pieces.list_names(), self.pieces.encode)

    def check_tokenizer(self, name: str) -> None:
        """Raises CannotShow where a run has other tokens for a prompt than the base run."""
        run, base = self.runs[name], self.runs[self.base_name]
        asked = map(base.find_prompt, base.answered)
        prompts: dict[str | None, list[int]] = {prompt["prompt"]: prompt["prompt_ids"] for prompt in asked if prompt["prompt"]}
        for sample in run.answered:
            prompt = run.find_prompt(sample)
            if prompts.get(prompt["prompt"], prompt["prompt_ids"]) != prompt["prompt_ids"]:
                raise CannotShow(
                    f"'{name}' was written with a different tokenizer than the base run '{self.base_name}': task {sample.task}, "
                    f"doc {sample.doc_id} has other tokens; give the base run of its own pair"
                )


def _name_texts(run: RunReader) -> dict[bytes, list[Name]]:
    """`(task, problem, sample)` of each text by key: several where tasks or documents share it."""
    names: dict[bytes, list[Name]] = {}
    for row in run.answered:
        names.setdefault(row.stored.key, []).append((row.task, row.problem, row.sample))
    return names
