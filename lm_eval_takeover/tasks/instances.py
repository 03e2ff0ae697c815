"""lm-eval's instances as requests: settings read, repeats numbered, texts as token ids, in windows and cut to the context."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.models.utils import normalize_gen_kwargs

from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.tasks.context import Evaluation

logger = logging.getLogger(__name__)

Ids = list[int]
Encode = Callable[[str, str], Sequence[int]]  # (text, its label) to token ids
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # lm-eval's names of one setting
GENERATION_ARGUMENTS = ("until", *LENGTHS, "do_sample", "temperature", "top_p", "top_k", "min_p")
NEUTRAL = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}  # settings at which nothing changes


def make_requests(
    instances: Sequence[Instance], evaluation: Evaluation, encode: Encode, *, max_length: int, max_gen_toks: int
) -> list[Request]:
    """One request for each instance, repeats numbered from 0; `encode` takes a prompt and its label.

    `max_length` tokens of context, prompt included; `max_gen_toks` for tasks that do not say. What is cut to the context is
    logged. Raises ArgumentError for settings that cannot be had.
    """
    repeats: Counter[tuple[Any, ...]] = Counter()
    encoded: dict[str, Sequence[int]] = {}
    truncated, shortened = set[str](), set[str]()
    requests = []
    for instance in instances:
        context, settings = instance.args
        sampling, until, new_tokens = read_generation_settings(settings, max_gen_toks)
        if context not in encoded:
            encoded[context] = encode(context, evaluation.name_document(instance))
        ids = encoded[context]
        left = max_length - len(ids)
        if left < 1:
            # As hf: the end of the prompt, and max_gen_toks behind it, at most half the context.
            room = max(max_length - new_tokens if new_tokens < max_length else max_length // 2, 1)
            ids, left = ids[-room:], max_length - room
            truncated.add(context)
            if left < 1:
                raise ArgumentError(f"max_length={max_length} leaves no room for a prompt and one new token")
        elif left < new_tokens:
            shortened.add(context)
        key = (instance.task_name, instance.doc_id, instance.idx, context)
        sample = repeats[key]
        repeats[key] += 1
        label = f"{evaluation.name_document(instance)}, sample {sample}"
        requests.append(Request(tuple(ids), sample, min(new_tokens, left), sampling, until, label))
    if truncated:
        counts = len(truncated), len(encoded), max_length
        logger.warning("%d of %d prompts are longer than the context of %d tokens; truncated from the left", *counts)
    if shortened:
        counts = len(shortened), len(encoded), max_length
        logger.warning("max_gen_toks is shortened for %d of %d prompts, to fit the context of %d tokens", *counts)
    return requests


def is_greedy(settings: dict[str, Any]) -> bool:
    """Whether lm-eval's generation kwargs ask for greedy decoding; False for settings that cannot be read."""
    try:
        known = normalize_gen_kwargs(settings)
        return not known["do_sample"] or float(known.get("temperature", 1.0)) == 0
    except (TypeError, ValueError, OverflowError):
        return False


def keep_last_length(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Generation kwargs with one name of the length, the last: lm-eval puts the command line's behind those of the task file."""
    lengths = [name for name in settings if name in LENGTHS and settings[name] is not None]
    return {name: value for name, value in settings.items() if name not in lengths[:-1]}


def read_generation_settings(settings: dict[str, Any], usual_length: int) -> tuple[Sampling, tuple[str, ...], int]:
    """lm-eval's generation kwargs as (sampling, until, max_gen_toks). Raises ArgumentError for what cannot be had."""
    try:
        arguments = normalize_gen_kwargs(keep_last_length(settings), usual_length)
        temperature = float(arguments.pop("temperature", 0.0))
        top_p = float(arguments.pop("top_p", 1.0))
        top_k, min_p = int(arguments.pop("top_k", 0) or 0), float(arguments.pop("min_p", 0) or 0)
        for name in [name for name, value in NEUTRAL.items() if name in arguments and float(arguments[name]) == value]:
            del arguments[name]
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"generation settings {settings} cannot be read: {error}") from error
    if arguments.pop("do_sample") and temperature == 0:
        raise ArgumentError("temperature=0 with do_sample=True: give a temperature above 0, or do_sample=False")
    for name in LENGTHS:  # which lm-eval has cut
        if isinstance(value := settings.get(name), float) and value % 1:
            raise ArgumentError(f"{name}={value} is not a whole number of tokens")
    max_gen_toks = arguments.pop("max_gen_toks")
    if max_gen_toks < 1:
        raise ArgumentError(f"max_gen_toks={max_gen_toks} is not at least 1 token")
    until = arguments.pop("until")
    if not all(isinstance(stop, str) for stop in until):
        raise ArgumentError(f"until={until} is not a list of texts")
    if arguments:
        name, value = next(iter(arguments.items()))
        advice = "did you mean 'until'?" if name == "stop" else nearest(name, GENERATION_ARGUMENTS)
        raise ArgumentError(f"generation setting '{name}={value}' is not known; {advice}")
    return Sampling(temperature, top_p, top_k, min_p), tuple(until), max_gen_toks


def list_rolling_windows(texts: Sequence[Ids], *, prefix: int, max_length: int) -> list[tuple[int, Ids, Ids]]:
    """`(index of the text, context ids, continuation ids)`: windows as `hf` cuts them, in which every token is scored once."""
    windows = []
    for index, tokens in enumerate(texts):
        rolling = utils.get_rolling_token_windows(tokens, prefix, max_length, context_len=1)
        windows += [(index, *utils.make_disjoint_window(window)) for window in rolling]
    return windows


def cut_to_context(texts: Sequence[tuple[Ids, Ids]], *, prefix: int, max_length: int) -> dict[int, tuple[Ids, Ids]]:
    """`(prompt, continuation)` by index of `(context, continuation)`, at least a token each; an empty context is `prefix`.

    As `hf` cuts them, from the left: `max_length` tokens are read, the last one of a continuation is only predicted. What adds no
    token is left out. Logs how many texts are cut.
    """
    pairs, cut = {}, 0
    for index, (context, continuation) in enumerate(texts):
        if not continuation:
            continue
        scored = continuation[-max_length:]
        whole = [*(context or [prefix]), *continuation][-(max_length + 1) :]
        pairs[index] = whole[: len(whole) - len(scored)], scored
        cut += len(whole) < len(context) + len(continuation)
    if cut:
        counts = cut, len(texts), max_length
        logger.warning("%d of %d texts are longer than the context of %d tokens; truncated from the left", *counts)
    return pairs
