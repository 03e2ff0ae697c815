"""Finds the texts of a run without scores, reads them with both models, and adds what it finds to the journal.

`restore_arguments` and `Readers` are the models of a stored run, for any command that reads its texts again.

Scores files: `RUN_DIR/scores/*.parquet`, one row per token of the stored samples, both models teacher-forced on the text.

    task, doc_id, sample, position, token_id, a column for each registered score, base_entropy, guide_entropy, base_logprob,
    guide_logprob, base_rank, guide_rank, base_top, guide_top

The score `entropy` is the column `base_entropy`. The base hosts, so `ce` is `-sum p_base log p_guide`. Ranks are those of the
token that stands there, 1 for the likeliest. Tops are the ids of the likeliest tokens. Scores, entropies and log-probabilities
are in nats, float32 as computed. The journal holds all scores, and the files are written from it for people.
"""

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from lm_eval_takeover import stopping
from lm_eval_takeover.arguments import KINDS, TWINS, ModelArguments
from lm_eval_takeover.backends import Backend, open_backend
from lm_eval_takeover.decoding.engine import TransformersBackend
from lm_eval_takeover.errors import ArgumentError, RunDirError, VocabularyError, run_in_batches
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement
from lm_eval_takeover.method.registry import load_plugins
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.pair.pair import Pair, load_pair
from lm_eval_takeover.runs.evidence import ScoresHeader, list_score_columns, pack_scores, unpack_scores
from lm_eval_takeover.runs.journal import Sample, row_digest
from lm_eval_takeover.runs.layout import SCORES
from lm_eval_takeover.runs.parquet import NAME_FIELDS, split_parts, tabulate, write_part
from lm_eval_takeover.runs.run_reader import Answered, RunReader
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of

logger = logging.getLogger(__name__)

# What is taken from a folder, which a stranger may have made: names, revisions and dtypes, nothing that runs code.
_RESTORED = {name for name, kind in KINDS.items() if kind.named}
_OTHERS = {name for name, kind in KINDS.items() if kind.key == "models"} - _RESTORED  # other models of the same files


def restore_arguments(run: RunReader, given: Mapping[str, Any]) -> ModelArguments:
    """The run's model arguments with those `given` on the command line. Raises ArgumentError where neither names a model."""
    own = dict(given)
    for role, names in (("base", TWINS), ("guide", TWINS.values())):
        if role in given:  # another repository
            own = {name: None for name in names if KINDS[name].own} | own
    _check_loading(run, given)
    stored = {name: value for name, value in run.arguments.items() if name in _RESTORED}
    arguments = ModelArguments.parse({**stored, **own})
    if (arguments.base is None) != (arguments.guide is None):
        missing = "base" if arguments.base is None else "guide"
        raise ArgumentError(f"--{missing} is missing: the run in '{run.folder}' (policy={run.policy}) has none")
    return arguments


def _check_loading(run: RunReader, given: Mapping[str, Any]) -> None:
    """Raise ArgumentError where the run's models were made with more than their files, and the command line is silent."""
    defaults = ModelArguments()
    for name in sorted(_OTHERS - given.keys()):
        value = run.arguments.get(name, getattr(defaults, name))
        if value != getattr(defaults, name) and ("guide" if name.startswith("guide_") else "base") not in given:
            raise ArgumentError(
                f"the run in '{run.folder}' was made with {name}={value}, which is not taken from a folder; where you trust "
                f"it, give --model_args {name}=…"
            )


class Readers:
    """A pair, and the engine that reads texts with it, which starts at the first text."""

    def __init__(self, arguments: ModelArguments) -> None:
        named = {"base": (arguments.base, arguments.revision), "guide": (arguments.guide, arguments.guide_revision)}
        models = [f"{role}={name}{f'@{at}' if at else ''}" for role, (name, at) in named.items() if name is not None]
        if models:
            code = "with their own code" if arguments.trust_remote_code else "without remote code"
            logger.warning("loading %s, %s", " and ".join(models), code)
        self.arguments, self.pair = arguments, load_pair(arguments)

    @cached_property
    def backend(self) -> Backend:
        both = Disagreement(gate=Gate(0.0))  # asks both models; nothing is written by it
        return open_backend(self.arguments, self.pair, both)

    def close(self) -> None:
        if "backend" in self.__dict__:
            self.backend.close()


_MOST_TEXTS = 512  # at a time, where an engine batches by itself
_BATCH_TOKENS = 2**13  # at a time, with batch_size=auto: seconds on a CPU, so the bar moves and a killed call keeps more


@dataclass(frozen=True, slots=True)
class UnscoredSample:
    sample: Answered
    prompt: tuple[int, ...]
    tokens: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)


def score_runs(folders: Sequence[Sequence[RunReader]], given: Mapping[str, Any], *, overwrite: bool, allow: str | None) -> int:
    """Score the runs of these folders; models are loaded once for runs of one pair. Returns the exit status."""
    load_plugins(given.get("plugins"))
    unscored = list[RunReader]()
    for of_folder in folders:  # of a comparison the base's, which analyses read
        unscored += [run for run in of_folder if run.written_by == "base"] or of_folder
    runs = [(run, restore_arguments(run, given)) for run in unscored]
    for arguments, of_pair in groupby(runs, itemgetter(1)):
        with contextlib.closing(Readers(arguments)) as readers:
            for run, _ in of_pair:
                with contextlib.closing(RunWriter(run.folder)) as writer:
                    run.check_models(arguments, readers.pair, allowed=allow == "weights")
                    count = score_run(run, writer, readers, overwrite=overwrite)
                print(f"{count:,} samples scored -> {run.folder / SCORES}")
    return 0


def score_run(run: RunReader, writer: RunWriter, readers: Readers, *, overwrite: bool) -> int:
    """Score the texts of one folder that have no scores. Returns their number. Raises RunDirError, VocabularyError."""
    pair = readers.pair
    members = [pair.member(role) for role in ("base", "guide")]
    models = [f"{one.role}={one.id.id} ({one.dtype}, revision {one.id.revision})" for one in members]
    header = ScoresHeader(", ".join(models), {score.name: score.source.digest for score in registered})
    samples = run.stored_samples()
    done = set[bytes]()
    for key, written, _ in run.read_scores([], [] if overwrite else samples):
        done.add(key)
        if written != header:
            raise RunDirError(
                f"run_dir='{run.folder}' was scored with {written.describe()}, not with {header.describe()}; give --overwrite to "
                f"replace it"
            )
    if len(run.answered) < len(run.asked):
        logger.warning(
            "run_dir='%s': %d of %d samples are finished; the run was stopped: finish it, and score it again",
            run.folder, len(run.answered), len(run.asked),
        )  # fmt: skip
    texts = read_texts(run, [sample for sample in samples if sample.stored.key not in done])
    texts.sort(key=lambda text: (-text.length, text.sample.name))  # the longest first: what does not fit is known at once
    if done:
        logger.warning("'%s': %d samples are scored already; %d are left", run.folder, len(done), len(texts))
    if texts:
        check_tokenizer(run, pair, texts)
        backend = readers.backend  # nothing can be refused any more
    if overwrite:
        with writer.writing() as journal:
            journal.drop_evidence("score", [sample.stored.key for sample in samples])
    try:
        if texts:
            _add_scores(run, writer, backend, header, texts)
    finally:
        write_score_files(writer, header, {sample.stored.key: sample.stored for sample in samples})
    return len(texts)


def _add_scores(
    run: RunReader, writer: RunWriter, backend: Backend, header: ScoresHeader, texts: Sequence[UnscoredSample]
) -> None:
    """Score these texts, the longest first, and commit each batch; half as many rows at a time once memory ran out."""
    scores, scored = list(registered), 0

    def compare(batch: Sequence[UnscoredSample]) -> list[dict[str, Any]]:
        labels = [f"task {text.sample.task}, doc {text.sample.doc_id}, sample {text.sample.sample}" for text in batch]
        return backend.compare(scores, [text.prompt for text in batch], [text.tokens for text in batch], labels)

    most = min(_MOST_TEXTS, backend.fit_rows(texts[0].length))
    if isinstance(backend, TransformersBackend) and backend.arguments.batch_size == "auto":
        most = min(most, max(1, _BATCH_TOKENS // texts[0].length))
    stopping.on_stop(lambda: f"{scored:,} samples are scored in '{run.folder}', and the same command goes on from there")
    total = sum(len(text.tokens) for text in texts)
    with tqdm(total=total, desc=f"Scoring {for_terminal(run.label)}", unit="tok", unit_scale=True) as bar:
        for batch, values in run_in_batches(compare, texts, most):
            pairs = zip(batch, values, strict=True)
            packed = {one.sample.stored.key: pack_scores(header, {"token_id": one.tokens, **of}) for one, of in pairs}
            with writer.writing() as journal:
                journal.add_evidence("score", packed)
            scored += len(batch)
            bar.update(sum(len(text.tokens) for text in batch))


def read_texts(run: RunReader, samples: Sequence[Answered]) -> list[UnscoredSample]:
    """Prompts and tokens of these samples. Raises RunDirError where they are missing or damaged."""
    return [
        UnscoredSample(sample, tuple(run.find_prompt(sample)["prompt_ids"]), found["token_id"].tolist())
        for sample, found in run.read_traces(["token_id"], samples)
    ]


def check_tokenizer(run: RunReader, pair: Pair, texts: Sequence[UnscoredSample]) -> None:
    """Raise VocabularyError where the pair cannot be that of these tokens: ids out of reach, or another tokenizer."""
    highest = max(max(*text.prompt, *text.tokens) for text in texts)
    if highest >= pair.vocab_size:
        raise VocabularyError(
            f"run_dir='{run.folder}' holds token {highest}, which lies outside the {pair.vocab_size} that base and guide share; "
            f"give the pair that wrote it by --base and --guide"
        )
    for text in texts[:8]:
        prompt = run.find_prompt(text.sample)["prompt"]
        if prompt and tuple(pair.encode(prompt))[-len(text.prompt) :] != text.prompt:
            raise VocabularyError(
                f"run_dir='{run.folder}' was written with a different tokenizer than that of {pair.members[0].id.id}: the prompt "
                f"of task {text.sample.task}, doc {text.sample.doc_id} has other tokens; name its pair with --base and --guide"
            )


def write_score_files(run: RunWriter, header: ScoresHeader, samples: Mapping[bytes, Sample]) -> None:
    """Write the scores that the journal holds of these samples, and remove other files of such names. Raises RunDirError."""
    folder, written = run.folder / SCORES, []
    with run.writing() as journal:
        scored = [samples[key] for key in journal.list_evidence("score") if key in samples]
        for number, part in enumerate(split_parts(scored, lambda sample: sample.tokens), 1):
            contents = dict(journal.read_evidence("score", [sample.key for sample in part]))
            made_of = [row_digest([*samples[key].row[:4], content]) for key, content in contents.items()]
            written.append(path := folder / f"{number:06d}.parquet")
            metadata = {"takeover": json.dumps(asdict(header))}
            write_part(journal, path, digest_of(made_of), partial(_tabulate, header, part, contents), metadata)
        for path in [*folder.glob("[0-9]*.parquet"), *folder.glob(".[0-9]*.parquet.*")]:
            if path not in written:
                path.unlink()


def _tabulate(header: ScoresHeader, samples: Sequence[Sample], contents: Mapping[bytes, bytes]) -> pa.Table:
    kinds = list_score_columns(header.scores)
    fields = (pa.field(name, pa.from_numpy_dtype(kind)) for name, kind in kinds.items())
    texts = [unpack_scores(contents[sample.key], sample.tokens, kinds)[1] for sample in samples]
    return tabulate(samples, texts, pa.schema([*NAME_FIELDS, *fields]))
