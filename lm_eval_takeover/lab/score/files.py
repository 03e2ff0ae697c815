"""Scores files: `RUN_DIR/scores/*.parquet`, one row per token of the stored samples, both models teacher-forced on the text.

    task, doc_id, sample, position, token_id, a column for each registered score, base_entropy, guide_entropy, base_logprob,
    guide_logprob, base_rank, guide_rank, base_top, guide_top

The score `entropy` is the column `base_entropy`. The base hosts, so `ce` is `-sum p_base log p_guide`. Ranks are those of the
token that stands there, 1 for the likeliest. Tops are the ids of the likeliest tokens. Scores, entropies and log-probabilities
are in nats, float32 as computed. The journal holds all scores, and the files are written from it for people.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

import pyarrow as pa

from lm_eval_takeover.runs.evidence import ScoresHeader, list_score_columns, unpack_scores
from lm_eval_takeover.runs.journal import Sample, row_digest
from lm_eval_takeover.runs.layout import SCORES
from lm_eval_takeover.runs.parquet import NAME_FIELDS, split_parts, tabulate, write_part
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of


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
