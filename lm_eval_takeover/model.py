"""The model type `guided-takeover` of lm-evaluation-harness."""

import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tqdm import tqdm

from lm_eval_takeover import __version__, stopping
from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding.engine import generate
from lm_eval_takeover.decoding.memory import rows_that_fit
from lm_eval_takeover.decoding.stop_strings import text_of
from lm_eval_takeover.decoding.teacher_forcing import force
from lm_eval_takeover.errors import (
    ModelOutputError,
    RunDirError,
    TakeoverError,
    VocabularyError,
    install_error_hook,
)
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.loading import load_pair, load_policy
from lm_eval_takeover.runs.journal import Asked, Sample
from lm_eval_takeover.runs.ranks import Padding, Ranks, WithoutPadding
from lm_eval_takeover.runs.run_dir import RunDir
from lm_eval_takeover.runs.sample_keys import sample_key, text_settings
from lm_eval_takeover.runs.tally import Tally, counted
from lm_eval_takeover.runs.traces import Writing, packed
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.tasks.instances import label_of, requests_of
from lm_eval_takeover.tasks.verdict_log import keep_with

logger = logging.getLogger(__name__)

LIBRARIES = ("torch", "transformers", "lm_eval")
DEFAULT_MAX_LENGTH = 2048  # as lm-eval's hf, where no configuration says otherwise


class GuidedTakeover(TemplateLM):  # type: ignore[misc]
    """A base model that writes, and a guide that takes over at decision tokens.

    Takes the model arguments of `lm_eval_takeover.arguments.ModelArguments` as keywords. Raises a TakeoverError, one
    line, for whatever the user can put right.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        install_error_hook()
        self.ranks = Ranks()
        self._rank, self._world_size = self.ranks.rank, self.ranks.count  # what lm-eval's own class reads
        self.arguments = self.ranks.placed(ModelArguments.parse(arguments))
        self.pair = load_pair(self.arguments)
        self.policy, self.gate_origin = load_policy(self.arguments, self.pair)
        for role in self.policy.roles:
            _ = self.pair.member(role).model  # a missing or broken checkpoint is an error now, not hours later
        self.tokenizer = self.pair.tokenizer
        self.tally: defaultdict[str, Tally] = defaultdict(Tally)
        self._labels: list[str] = []  # of the log-likelihood requests at hand
        self._seconds = 0.0
        self._chat = False  # whether prompts went through a chat template
        self.run = self._open_run_dir()

    def _open_run_dir(self) -> RunDir | None:
        arguments = self.arguments
        if arguments.run_dir is None:
            stopping.on_stop(lambda: "no run_dir=… is given, so nothing was kept")
            return None
        settings = text_settings(
            self.pair,
            self.policy,
            backend=arguments.backend,
            seed=arguments.seed,
            trust_remote_code=arguments.trust_remote_code,
        )
        self._settings = digest_of(settings)
        self._facts = {
            "version": __version__,
            "library_versions": {name: metadata.version(name) for name in LIBRARIES},
            "arguments": asdict(arguments),
            "settings": settings,
            "takeover": self._description(),
        }
        run = RunDir(Path(arguments.run_dir), self.rank, self.world_size)
        stopping.on_stop(run.kept)
        return run

    def close(self) -> None:
        """Let go of the run_dir, where there is one; the end of the process does the same."""
        if self.run is not None:
            self.run.close()

    # What lm-eval asks about the model

    @property
    def device(self) -> Any:
        return self.pair.members[0].device

    @property
    def batch_size(self) -> int:
        return self.arguments.rows

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if bos is None else bos)

    @property
    def max_length(self) -> int:
        return self.arguments.max_length or self.pair.max_length or DEFAULT_MAX_LENGTH

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.pair.encode(string, add_special_tokens)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt in the guide's chat template; without the system message where the template refuses one."""
        self._chat = True
        return self.pair.chat_prompt(
            chat_history, add_generation_prompt=add_generation_prompt, enable_thinking=self.arguments.enable_thinking
        )

    def get_model_info(self) -> dict[str, Any]:
        """What the run was, for lm-eval's results file: `config.takeover`."""
        attempts, seconds = self.run.attempts_and_seconds() if self.run and self.run.command else (1, self._seconds)
        return {
            "takeover": self._description()
            | counted(self.tally, self.policy)
            | {"run_dir": self.arguments.run_dir, "attempts": attempts, "seconds": round(seconds, 3)}
        }

    def _description(self) -> dict[str, Any]:
        """What does not depend on what was written."""
        gate, used = self.policy.gate, self.policy.gated
        return {
            "base": asdict(self.pair.base.id) if self.pair.base else None,
            "guide": asdict(self.pair.guide.id) if self.pair.guide else None,
            "backend": self.arguments.backend,
            "policy": self.policy.name,
            "direction": self.policy.direction,
            "score": self.policy.score if used else None,
            "tau": gate.tau if gate and used else None,
            "kappa": gate.kappa if gate and used else None,
            "window": gate.window if gate and used else None,
            "spike_ratio": self.gate_origin.spike_ratio,
            "target_rate": self.gate_origin.target_rate,
            "calibration": self.gate_origin.calibration,
            "kappa_rule": self.gate_origin.kappa_rule,
            "rate": self.policy.rate,
            "early_tokens": self.policy.early_tokens,
            "seed": self.arguments.seed,
            "block_size": self.arguments.block_size,
            "devices": {role: str(self.pair.member(role).device) for role in self.policy.roles},
            "dtypes": {role: str(self.pair.member(role).model.dtype) for role in self.policy.roles},
        }

    # lm-eval passes its own batch_size and device beside the model arguments; what the user put there wins.

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "GuidedTakeover":
        own = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**(own | arg_dict))

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "GuidedTakeover":
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    # Ranks

    def all_gather(self, tensor: Any) -> Any:
        return self.ranks.all_gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        return self.ranks.gather_object(obj, dst)

    def barrier(self) -> None:
        self.ranks.barrier()

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """All repeats of all requests; the text of sample j of a document depends on its prompt, j and the seed only.

        With a run_dir, what it holds is not written again, and every sample is kept there once it is finished.
        """
        keep_with(self.run)  # the verdicts on these texts
        started = time.perf_counter()
        texts: list[str] = [Padding()] * len(requests)
        spent: defaultdict[str, Tally] = defaultdict(Tally)
        failure: TakeoverError | None = None
        try:
            self._answer(requests, texts, spent, quiet=disable_tqdm)
        except TakeoverError as error:  # of which the other ranks need not die before they have finished their share
            failure = error
        self._seconds += time.perf_counter() - started
        everyone = self.ranks.share((dict(spent), None if failure is None else str(failure)))
        if failure is not None:
            raise failure
        for rank, (_, message) in enumerate(everyone):
            if message is not None:
                raise ModelOutputError(f"rank {rank}: {message}")
        for tallies, _ in everyone:
            for task, tally in tallies.items():
                self.tally[task].add(tally)
        return texts

    def _answer(
        self, instances: Sequence[Instance], texts: list[str], spent: Mapping[str, Tally], *, quiet: bool
    ) -> None:
        """Fill in this rank's texts, and what they took by task."""
        made = self.requests(instances)
        wanted = [i for i in range(len(made)) if not self._is_padding(instances[i], made[i])]
        new, started = Tally(), time.perf_counter()
        show = {"desc": "Running generate_until requests", "unit": "sample", "disable": quiet or self.rank != 0}
        with self._flushed(), tqdm(total=len(wanted), **show) as bar:
            for i, sample, is_new in self._samples(instances, made, wanted):
                texts[i] = sample.text
                spent[instances[i].task_name or "none"].add(sample)
                self.cache_hook.add_partial("generate_until", instances[i].args, texts[i])
                if is_new:
                    new.add(sample)
                speed = new.tokens / (time.perf_counter() - started)
                bar.set_postfix_str(f"{speed:,.0f} tokens/s, realized rate {new.realized_rate:.1%}", refresh=False)
                bar.update()

    @contextlib.contextmanager
    def _flushed(self) -> Iterator[None]:
        """Behind it, all that was finished is in the run_dir. What ended it early counts, and not a full disk on top."""
        try:
            yield
        except BaseException:
            if self.run is not None:
                with contextlib.suppress(RunDirError):
                    self.run.flush()
            raise
        if self.run is not None:
            self.run.flush()

    def requests(self, instances: Sequence[Instance]) -> list[Request]:
        """What is generated for these instances: prompts as token ids, cut to the context."""
        return requests_of(
            instances,
            lambda text, label: self._checked(self.tok_encode(text), label),
            max_length=self.max_length,
            max_gen_toks=self.arguments.max_gen_toks,
        )

    def _is_padding(self, instance: Instance, request: Request) -> bool:
        """Whether lm-eval repeats the last request once more, to give every rank as many; its answer goes nowhere."""
        if self.world_size == 1 or request.sample < (instance.repeats or 1):
            return False
        if not isinstance(instance.resps, WithoutPadding):
            instance.resps = WithoutPadding(instance.resps)
        return True

    def _samples(
        self, instances: Sequence[Instance], made: Sequence[Request], wanted: Sequence[int]
    ) -> Iterator[tuple[int, Sample, bool]]:
        """For each wanted place its sample as it is there, and whether it is a new one."""
        run = self.run
        places: dict[bytes, list[int]] = {}
        for i in wanted:
            key = sample_key(self._settings, made[i]) if run else i.to_bytes(8, "big")
            places.setdefault(key, []).append(i)
        if run is not None:
            self._begin(run, instances, made, places)
            kept = run.find(list(places))
            if kept:
                logger.warning(
                    "run_dir='%s': %d of %d samples are finished already; %d are left to write",
                    run.folder, len(kept), len(places), len(places) - len(kept),
                )  # fmt: skip
            for key, sample in kept.items():
                for i in places.pop(key):
                    yield i, sample, False
        if not places:
            return
        keys = list(places)
        left = [made[places[key][0]] for key in keys]
        written = generate(
            self.pair,
            self.policy,
            left,
            seed=self.arguments.seed,
            batch_size=self._rows_for(left),
            block_size=self.arguments.block_size,
            traced=run is not None,
        )
        writing = self._writing(run) if run else None
        for place, generation in written:
            key = keys[place]
            instance, request = instances[places[key][0]], left[place]
            sample = Sample(
                key=key,
                task=instance.task_name or "none",
                doc_id=instance.doc_id or 0,
                sample=request.sample,
                text=text_of(self.tokenizer, generation.tokens, request.until),
                tokens=len(generation.tokens),
                takeovers=generation.takeovers,
                base_passes=generation.base_passes,
                guide_passes=generation.guide_passes,
            )
            if run is not None and writing is not None:
                run.add(replace(sample, trace=packed(generation, writing)))
            for i in places[key]:
                yield i, sample, True

    def _begin(
        self,
        run: RunDir,
        instances: Sequence[Instance],
        made: Sequence[Request],
        places: Mapping[bytes, Sequence[int]],
    ) -> None:
        """Tell the journal what is asked for. Commands that differ in their tasks or decoding settings are told apart."""
        decoding = sorted({(one.task_name or "none", json.dumps(one.args[1], sort_keys=True)) for one in instances})
        facts = self._facts | {"tasks": [[task, json.loads(settings)] for task, settings in decoding]}
        command = digest_of([self._settings, decoding, self._chat])
        run.begin(command, facts, _asked(instances, made, places))
        earlier = run.earlier_facts()
        if earlier and earlier[-1].get("library_versions") != facts["library_versions"]:
            logger.warning(
                "run_dir='%s': earlier samples were written with %s, these are with %s; rounding may differ",
                run.folder, _versions(earlier[-1]), _versions(facts),
            )  # fmt: skip

    def _writing(self, run: RunDir) -> Writing:
        gate = self.policy.gate if self.policy.gated else None
        writers = self.policy.writes(taken_over=False), self.policy.writes(taken_over=True)
        return Writing(run.command, writers, gate.window if gate else None)

    def _rows_for(self, requests: Sequence[Request]) -> int:
        """Samples at a time; `batch_size=auto` is what fits, where each of them may become as long as it is allowed to."""
        if self.arguments.batch_size != "auto":
            return self.batch_size
        members = [self.pair.member(role) for role in self.policy.roles]
        rows = rows_that_fit(members, requests, self.pair.vocab_size(self.policy.roles), self.batch_size)
        logger.info(
            "batch_size=auto: %d samples of up to %d new tokens fit", rows, max(r.max_new_tokens for r in requests)
        )
        return rows

    def _checked(self, ids: list[int], label: str) -> list[int]:
        """These token ids, or the prefix token where there are none; raises VocabularyError for one that a model cannot read."""
        ids = ids or [self.prefix_token_id]
        size = self.pair.vocab_size(self.policy.roles)
        if max(ids) >= size:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise VocabularyError(
                f"{label} holds token {max(ids)} ({token!r}), which lies outside the {size} tokens that "
                f"{' and '.join(self.policy.roles)} can read; run without --apply_chat_template or choose a base with it"
            )
        return ids

    # Log-likelihoods

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-prob in nats, whether greedy) of each continuation under takeover."""
        self._labels = [label_of(request) for request in requests]
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return scored

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-prob of whole texts under takeover, in nats; windows of the context's length, as `hf` cuts them."""
        windows: list[tuple[tuple[str, str], list[int], list[int]]] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            (text,) = request.args
            rolling = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, continuation in map(utils.make_disjoint_window, rolling):
                windows.append((("", ""), context, continuation))
                owners.append(owner)
        self._labels = [label_of(requests[owner]) for owner in owners]
        totals = [0.0] * len(requests)
        scored = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for owner, (log_prob, _) in zip(owners, scored, strict=True):
            totals[owner] += log_prob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """For each (texts, context ids, continuation ids) the log-prob of the continuation and whether it is greedy.

        Teacher-forced: each token counts under the model that the policy lets write it.
        """
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)  # what adds no token has probability 1
        prompts: dict[int, list[int]] = {}
        continuations: dict[int, list[int]] = {}
        cut = 0
        for i, (_texts, context, continuation) in enumerate(requests):
            if continuation:
                self._checked([*context, *continuation], self._labels[i])
                continuations[i] = continuation[-self.max_length :]
                whole = [*(context or [self.prefix_token_id]), *continuation][-(self.max_length + 1) :]
                prompts[i] = whole[: len(whole) - len(continuations[i])]
                cut += len(whole) < len(context) + len(continuation)
        if cut:
            logger.warning(
                "%d of %d texts are longer than the context of %d tokens; truncated from the left",
                cut, len(requests), self.max_length,
            )  # fmt: skip
        order = sorted(continuations, key=lambda i: -len(prompts[i]) - len(continuations[i]))
        bar = tqdm(total=len(order), desc="Running loglikelihood requests", disable=disable_tqdm)
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            forced = force(
                self.pair,
                self.policy,
                [prompts[i] for i in chosen],
                [continuations[i] for i in chosen],
                seed=self.arguments.seed,
                labels=[self._labels[i] for i in chosen],
            )
            for i, one in zip(chosen, forced, strict=True):
                results[i] = (float(one.log_probs.double().sum()), bool(one.greedy.all()))
                if requests[i][0] != ("", ""):
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], results[i])
            bar.update(len(chosen))
        bar.close()
        return results


def _asked(
    instances: Sequence[Instance], made: Sequence[Request], places: Mapping[bytes, Sequence[int]]
) -> Iterator[Asked]:
    """What the journal remembers of each request: which sample of which document it wants, and the key of the answer."""
    digests: dict[int, tuple[str, str]] = {}  # the repeats of a document are one instance
    for key, indices in places.items():
        for i in indices:
            instance = instances[i]
            if id(instance) not in digests:
                digests[id(instance)] = digest_of(instance.doc), digest_of_text(instance.args[0]).hex()
            doc, prompt = digests[id(instance)]
            task, doc_id = instance.task_name or "none", instance.doc_id or 0
            yield Asked(task, doc, instance.idx, made[i].sample, doc_id, prompt, key)


def _versions(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in (facts.get("library_versions") or {}).items())
