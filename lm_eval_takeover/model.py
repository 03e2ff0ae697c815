"""The model type `guided-takeover` of lm-evaluation-harness: what lm-eval asks a model for, and nothing else."""

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import torch
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tqdm import tqdm

from lm_eval_takeover import lm_eval_hooks, stopping
from lm_eval_takeover.backends import Backend, open_backend
from lm_eval_takeover.decoding.rows import is_cut_off, text_of
from lm_eval_takeover.decoding.teacher_forcing import Forced
from lm_eval_takeover.errors import ArgumentError, TakeoverError, run_in_batches
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import DEFAULT_MAX_LENGTH, load_pair
from lm_eval_takeover.pair.policy_choice import load_policy, parse_arguments
from lm_eval_takeover.runs import identity
from lm_eval_takeover.runs.journal import AskedSample, Sample
from lm_eval_takeover.runs.progress import Progress
from lm_eval_takeover.runs.ranks import Padding, Ranks
from lm_eval_takeover.runs.recorder import Recorder, RequestPlan, is_changed_traced
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.code_reach import digest_code
from lm_eval_takeover.tasks.context import Evaluation, RunContext, get_evaluation
from lm_eval_takeover.tasks.instances import cut_to_context, list_rolling_windows, make_requests
from lm_eval_takeover.tasks.known_problems import find_calibrated_problem, has_template, refuse_calibrated_tasks

logger = logging.getLogger(__name__)


class GuidedTakeover(TemplateLM):  # type: ignore[misc]
    """A base that writes and a guide that takes over. Keywords are `ModelArguments`. Raises TakeoverErrors of one line."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        stopping.install_error_hook()
        lm_eval_hooks.share_logging()
        self.ranks = Ranks()
        self._rank, self._world_size = self.ranks.rank, self.ranks.count  # what lm-eval's own class reads
        for name in ("all_gather", "gather_object", "barrier"):  # what lm-eval calls
            setattr(self, name, getattr(self.ranks, name))
        placed = self.ranks.place(parse_arguments(arguments))
        self._own_seed = placed.seed
        self.arguments = replace(placed, seed=lm_eval_hooks.choose_seed(placed.seed))
        evaluation = get_evaluation() or Evaluation()
        self.pair = load_pair(self.arguments, evaluation.pairs)
        self.policy, self.gate_origin = load_policy(self.arguments, self.pair, evaluation.task)
        self.tokenizer = self.pair.tokenizer
        self._labels: list[str] = []  # of the log-likelihood requests at hand, for errors
        folder = self.arguments.run_dir
        self.run = None if folder is None else RunWriter(Path(folder), self.rank, self.world_size)
        stopping.on_stop(self.run.describe_kept if self.run else lambda: "no run_dir=… is given, so nothing was kept")
        self._begin(evaluation)

    @cached_property
    def engine(self) -> Backend:
        """Both models loaded, once what is asked is known to fit. (`backend` is lm-eval's own word: causal.)"""
        return open_backend(self.arguments, self.pair, self.policy)

    # One object may serve several evaluations.

    def _begin(self, evaluation: Evaluation) -> None:
        end = self.arguments.think_end_token
        text = self.tokenizer.decode([end]) if isinstance(end, int) else end or ""
        self.context = RunContext(evaluation, think_end=text, log=self.run.add_verdicts if self.run else None)
        self.samples: defaultdict[str, list[Sample]] = defaultdict(list)  # without their texts
        self._asked: defaultdict[str, list[AskedSample]] = defaultdict(list)  # by task, of all ranks
        self._seconds = 0.0  # of wall time in which texts were written
        self._chat = False  # whether prompts went through a chat template
        self.batch_sizes: dict[str, int] = {}  # by kind of request what `batch_size=auto` chose; lm-eval prints them

    def _enter_evaluation(self) -> None:
        """At lm-eval's first call in another evaluation than before: its own counts, and its seed."""
        evaluation = get_evaluation()
        if evaluation is None or evaluation is self.context.evaluation:
            return
        self._begin(evaluation)
        self.arguments = replace(self.arguments, seed=lm_eval_hooks.choose_seed(self._own_seed))

    def _collect_settings(self) -> dict[str, Any]:
        return identity.collect_text_settings(self.pair, self.policy, self.arguments)

    def _make_recorder(self) -> Recorder:
        facts = identity.collect_facts(self.arguments, self._collect_settings(), self._description())
        return Recorder(self.run, facts, self.policy, self.context.evaluation)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Raises ArgumentError: lm-eval's cache knows prompts, and no models."""
        lm_eval_hooks.refuse_cache(cache_hook.dbdict.filename)

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
        self._enter_evaluation()
        self._chat, self.pair.template = True, self.context.evaluation.template
        return self.pair.chat_prompt(
            chat_history, add_generation_prompt=add_generation_prompt, enable_thinking=self.arguments.enable_thinking
        )

    def get_model_info(self) -> dict[str, Any]:
        """The run as lm-eval's results file describes it: `config.takeover`."""
        self._enter_evaluation()
        run = self.run
        kept = run if run and run.command else None
        counts = identity.summarize_samples(self.samples, float(self.policy.host is None))
        for task, of_task in counts["per_task"].items():
            of_task["identity"] = identity.identify_task(self._asked[task])
        fit = self.gate_origin.fit
        differences = fit.name_differences(counts["tokens"], counts["samples"]) if fit else []
        for source in self.policy.sources:
            if source.files and digest_code(source.files) != source.digest:
                logger.warning("plug-in %s reads a file or variable after its first text; no digest covers that", source.name)
        told: dict[str, Any] = {"differs_from_calibration": differences, "run_dir": None if run is None else str(run.folder)}
        told["attempts"] = len(kept.read_attempts()) if kept else 1
        told["seconds"] = kept.journal.seconds(kept.command) if kept else round(self._seconds, 3)
        return {"takeover": {**self._description(), **identity.describe_identity(self._collect_settings()), **counts, **told}}

    def _description(self) -> dict[str, Any]:
        return identity.describe_run(self.arguments, self.pair, self.policy, self.gate_origin)

    # lm-eval passes its own batch_size and device, too; the user's model arguments win.

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Self:
        own = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if lm_eval_hooks.is_default_device(own.get("device")) and not torch.cuda.is_available():
            del own["device"]
        return cls(**(own | arg_dict))

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Self:
        return cls.create_from_arg_obj(utils.simple_parse_args_string(arg_string), additional_config)

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """All repeats. Sample j depends on its prompt, j and the seed only; what a run_dir holds is not written again."""
        self._enter_evaluation()
        texts: list[str] = [Padding()] * len(requests)
        done: defaultdict[str, list[Sample]] = defaultdict(list)
        planned, failure = None, None
        try:
            planned = self._plan(requests)
        except TakeoverError as error:  # raised after gathering, in which the other ranks wait
            failure = error
        for row in chain(*self.ranks.gather_or_raise(planned[1].asked if planned else [], failure)):
            self._asked[row.task].append(row)
        assert planned is not None
        started = time.perf_counter()
        try:
            with self.run.flushing() if self.run else contextlib.nullcontext():
                for i, sample in self._list_samples(requests, *planned, quiet=disable_tqdm or self.rank != 0):
                    texts[i] = sample.respond(self.context)
                    done[requests[i].task_name or "none"].append(replace(sample, text=""))
        except TakeoverError as error:
            failure = error
        self._seconds += time.perf_counter() - started
        for by_task in self.ranks.gather_or_raise(dict(done), failure):
            for task, samples in by_task.items():
                self.samples[task] += samples
        return texts

    def _plan(self, instances: Sequence[Instance]) -> tuple[Recorder, RequestPlan]:
        """What this rank's instances ask for. Loads the models if a text is missing."""
        thinking = self.arguments.enable_thinking
        if thinking is not None and not self._chat and self.pair.is_chat_prompt(instances[0].args[0]) is False:
            raise ArgumentError(f"enable_thinking={thinking} is read with --apply_chat_template; give both or none")
        requests = self.requests(instances)
        self._check_calibration(instances, [request.sampling for request in requests])
        indices = self.ranks.drop_padding(instances, requests)
        recorder = self._make_recorder()
        plan = recorder.plan(instances, requests, indices)
        if len(plan.stored) < len(plan.by_key):
            _ = self.engine  # whose dtype is in the keys; it may be another than the weights are stored in
            if (loaded := self._make_recorder()).identity != recorder.identity:
                recorder, plan = loaded, loaded.plan(instances, requests, indices)
        return recorder, plan

    def _list_samples(
        self, instances: Sequence[Instance], recorder: Recorder, plan: RequestPlan, *, quiet: bool
    ) -> Iterator[tuple[int, Sample]]:
        """`(index of a request, its sample)` of all that the plan asks for: of finished samples, then of those that it writes."""
        requests, stored = plan.requests, plan.stored
        identities = {task: identity.identify_task(rows) for task, rows in self._asked.items()}
        recorder.begin(instances, plan, identities)
        if self.gate_origin.fit is not None:
            self.gate_origin.fit.compare_weights()
        yield from ((i, sample) for key, sample in stored.items() for i in plan.by_key[key])
        left = {key: indices for key, indices in plan.by_key.items() if key not in stored}
        if not left:
            return
        keys, firsts = list(left), [indices[0] for indices in left.values()]
        wanted = [requests[i] for i in firsts]
        rows = self._rows_of_length("generate_until", max(len(request.prompt) + request.max_new_tokens for request in wanted))
        # From here on the bar is shown; a notice would break its line.
        finished = sum(len(plan.by_key[key]) for key in stored)
        with Progress(len(plan.asked), finished, quiet=quiet, bars=self.context.evaluation.bars) as progress:
            traced = self.run is not None or is_changed_traced(self.policy)
            options: dict[str, Any] = {"seed": self.arguments.seed, "rows": rows, "traced": traced}
            for number, generation in self.engine.generate(wanted, **options, count_tokens=progress.count_tokens):
                key, request = keys[number], wanted[number]
                text = text_of(self.tokenizer, generation.tokens, request.until)
                cut = generation.thought_cut or is_cut_off(self.tokenizer, generation.tokens, request, self.pair.eos_ids)
                sample = recorder.add(key, instances[firsts[number]], request, generation, text, truncated=cut)
                for i in left[key]:
                    yield i, sample
                    progress.finish(sample.tokens, sample.takeovers)

    def _check_calibration(self, instances: Sequence[Instance], samplings: Sequence[Sampling | None]) -> None:
        """Refuse a calibration that was measured on other prompts or decoding than these instances have, or on these problems."""
        if (fit := self.gate_origin.fit) is None:
            return
        prompts = [(instance.task_name or "none", instance.args[0]) for instance in instances]
        fit.check((*prompt, sampling) for prompt, sampling in zip(prompts, samplings, strict=True))
        template = fit.calibration.prompts.get("template_digest")
        fit.compare_template(template is not None and not all(has_template(p, template) for _, p in set(prompts)))
        refuse_calibrated_tasks(fit.calibration.name, fit.calibration.diagnostic, prompts)
        documents = ((self.context.evaluation.name_document(instance), instance.doc) for instance in instances)
        if label := find_calibrated_problem(fit.calibration.problems, documents):
            fit.refuse(f"calibration '{fit.calibration.name}' was measured on the problem of {label}")

    def requests(self, instances: Sequence[Instance]) -> list[Request]:
        """The requests of these instances: prompts as token ids, cut to the context."""
        limits = {"max_length": self.max_length, "max_gen_toks": self.arguments.max_gen_toks}
        return make_requests(instances, self.context.evaluation, self._encode, **limits)

    def _rows_of_length(self, kind: str, tokens: int) -> int:
        """How many rows of so many tokens are read at a time; lm-eval is told what `batch_size=auto` chose."""
        rows = self.engine.fit_rows(tokens)
        if self.arguments.batch_size == "auto":
            self.batch_sizes[kind] = rows
        return rows

    def _encode(self, text: str, label: str) -> list[int]:
        """Token ids of a prompt, of none the prefix token. Raises VocabularyError for one that a model cannot read."""
        ids = self.tok_encode(text) or [self.prefix_token_id]
        self.pair.check_ids(ids, label)
        return ids

    # Log-likelihoods

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-prob in nats, whether greedy) of each continuation under takeover."""
        self._enter_evaluation()
        self._check_calibration(requests, [None] * len(requests))
        self._labels = [self.context.evaluation.name_document(request) for request in requests]
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return scored

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-prob of whole texts under takeover, in nats; windows of the context's length, as `hf` cuts them."""
        self._enter_evaluation()
        self._check_calibration(requests, [None] * len(requests))
        texts = [self.tok_encode(request.args[0]) for request in requests]
        windows = list_rolling_windows(texts, prefix=self.prefix_token_id, max_length=self.max_length)
        self._labels = [self.context.evaluation.name_document(requests[owner]) for owner, _, _ in windows]
        scored = self._loglikelihood_tokens([(("", ""), *window[1:]) for window in windows], disable_tqdm=disable_tqdm)
        totals = [0.0] * len(requests)
        for (owner, _, _), (log_prob, _) in zip(windows, scored, strict=True):
            totals[owner] += log_prob
        return totals

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-prob, whether greedy) of each continuation, teacher-forced: each token under the model that the policy picks."""
        if self.policy.redraws and self.policy.mixes:
            how = ",".join(f"{name}={value}" for name, value in self.policy.settings().items())
            raise ArgumentError(
                f"policy={self.policy.name} with {how} has no probability of a given text, since it looks at the host's token "
                f"and draws from a mix; for log-likelihoods use another policy"
            )
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)  # what adds no token has probability 1
        for (_texts, context, continuation), label in zip(requests, self._labels, strict=True):
            if continuation:
                self.pair.check_ids([*context, *continuation], label)
        pairs = [(context, continuation) for _texts, context, continuation in requests]
        texts = cut_to_context(pairs, prefix=self.prefix_token_id, max_length=self.max_length)
        order = sorted(texts, key=lambda i: -sum(map(len, texts[i])))
        bar = tqdm(total=len(order), desc="Running loglikelihood requests", disable=disable_tqdm)
        at_once = self._rows_of_length("loglikelihood", max((sum(map(len, texts[i])) for i in order), default=1))
        if self.gate_origin.fit is not None:
            self.gate_origin.fit.compare_weights()
        for chosen, forced in run_in_batches(partial(self._force, texts), order, at_once):
            for i, row in zip(chosen, forced, strict=True):
                results[i] = (float(row.log_probs.double().sum()), bool(row.greedy.all()))
            bar.update(len(chosen))
        bar.close()
        return results

    def _force(self, texts: Mapping[int, tuple[list[int], list[int]]], chosen: Sequence[int]) -> list[Forced]:
        prompts, continuations = zip(*(texts[i] for i in chosen), strict=True)
        labels = [self._labels[i] for i in chosen]
        return self.engine.force(prompts, continuations, seed=self.arguments.seed or 0, labels=labels)
