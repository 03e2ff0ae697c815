"""From model arguments to a running vLLM engine: the fused pair, drafts, or one model alone.

`scripts/check_next_vllm.py` looks up in another version of vLLM every name that is used here.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from lm_eval_takeover.arguments import VLLM_INSTEAD, ModelArguments
from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.forward.caches import list_layer_kinds
from lm_eval_takeover.method.policy import DIRECTIONS, Policy
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.vllm.block_rule import Choice, choose_drafts, describe_costs
from lm_eval_takeover.vllm.plugin import ARCHITECTURE, register
from lm_eval_takeover.vllm.settings import EngineSettings, describe_policy

logger = logging.getLogger(__name__)

# As in the extra `vllm` of pyproject.toml, with every patch release. The tests ran with the first; of the others names were read.
SUPPORTED = ("0.32", "0.33")
_INSTALL = "pip install '.[vllm]', on a machine without a GPU as in docs/vllm.md"
PROCESSOR = "lm_eval_takeover.vllm.fused:TakeoverLogitsProcessor"
CHECK = "lm_eval_takeover.vllm.fused:RequestCheck"
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
EXTENSION = "lm_eval_takeover.vllm.slots.WorkerExtension"
WORKER = "lm_eval_takeover.vllm.drafts.TakeoverWorker"
_CACHE_BLOCK = "kv_block_size"  # vLLM's `block_size`, tokens of a cache block; that name is the length of drafts here
_LIMITS = ("data_parallel_wait", "data_parallel_timeout")  # of several engines; vLLM has no such arguments
_MEMORY = "give a smaller max_model_len=… or another gpu_memory_utilization=… (on a CPU: VLLM_CPU_KVCACHE_SPACE, in GiB)"
# vLLM arguments that this package sets.
_OURS = {"hf_overrides", "logits_processors", "model", "speculative_config", "tokenizer", "worker_cls", "worker_extension_cls"}


def check_version() -> None:
    """Raises ArgumentError if vLLM is missing or of another version: its private classes are used."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # by default vLLM reports its use
    try:
        import vllm

        version = vllm.__version__
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"backend=vllm needs vLLM, which cannot be imported ({error}): {_INSTALL}") from error
    release = ".".join(version.split(".")[:2])
    if release not in SUPPORTED:
        raise ArgumentError(f"backend=vllm: vLLM {version} is installed, expected {' or '.join(SUPPORTED)}: {_INSTALL}")
    if release != SUPPORTED[0]:
        logger.warning("vLLM %s: the tests ran with %s. Of this version only the names were compared.", version, SUPPORTED[0])


class Sharing(NamedTuple):
    """How engines share the work: their number, the ranks of each, seconds to wait for GPUs that others use and for engines to
    start, and seconds without a token after which an engine is ended.
    """

    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    data_parallel_wait: int = 3600
    data_parallel_timeout: int = 600


def count_engines(arguments: ModelArguments) -> Sharing:
    """How engines share the work. Raises ArgumentError unless all numbers are whole and 1 or more."""
    given = {name: value for name, value in arguments.engine_arguments.items() if name in Sharing._fields}
    for name, value in given.items():
        if type(value) is not int or value < 1:
            raise ArgumentError(f"{name}={value} is not a whole number of 1 or more")
    return Sharing(**given)


def plan_drafts(arguments: ModelArguments, pair: Pair, policy: Policy) -> Choice:
    """Choose the length of drafts; logs the reason. Raises ArgumentError for a model that vLLM cannot run, or draft with."""
    check_architectures(pair, policy)
    engine_arguments, block_size = arguments.engine_arguments, arguments.block_size
    most = int(engine_arguments.get("max_num_seqs") or count_requests(count_engines(arguments).tensor_parallel_size))
    if pair.base is None or pair.guide is None or "guide" not in policy.roles:
        obstacle = f"policy={policy.name} has no base to draft and a guide to verify"
        if block_size not in ("auto", 1):
            raise ArgumentError(f"block_size={block_size} with backend=vllm: {obstacle}; leave it out, or give block_size=1")
        return Choice([], obstacle)
    if block_size != 1 and not choose_runner():
        choice = Choice([], "fused, since drafts need vLLM's model runner V2, which GPUs have; this engine has V1")
    elif block_size != 1 and getattr(pair.member(DIRECTIONS[policy.direction][0]).config, "quantization_config", None):
        choice = Choice([], "fused, since vLLM's draft models do not find the layers that a quantized checkpoint leaves out")
    elif block_size != "auto":
        return Choice([(1, most, int(block_size))] if int(block_size) > 1 else [], f"block_size={block_size}")
    else:
        alike = int(engine_arguments.get("data_parallel_size", 1)) > 1  # vLLM's own engines draft alike
        choice = choose_drafts(describe_costs(arguments, pair, policy), most, fixed=alike)
    logger.log(logging.INFO if block_size == "auto" else logging.WARNING, "block_size=%s: %s", block_size, choice.reason)
    return choice


def count_requests(ranks: int) -> int:
    """How many requests an engine of so many ranks has at a time by default: vLLM's own number for this device."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    return int(EngineArgs.get_batch_defaults(ranks)[1][UsageContext.LLM_CLASS])


def list_engine_arguments(arguments: ModelArguments, pair: Pair, policy: Policy, drafts: Choice) -> dict[str, Any]:
    """vLLM's `EngineArgs`, with drafts of these lengths. Raises ArgumentError for arguments or pairs that it cannot have."""
    refuse_others(arguments)
    engine_options = check_names(arguments.engine_arguments)
    block, (drafting, verifying) = drafts.longest, DIRECTIONS[policy.direction]
    target = pair.member(verifying if block > 1 else "guide" if "guide" in policy.roles else "base")
    base = pair.member("base") if len(policy.roles) == 2 and block == 1 else None
    both = (drafting, verifying) if block > 1 else ()
    rows = [int(pair.member(role).config.get_text_config().vocab_size) for role in both]  # padding included
    settings = EngineSettings(
        policy=describe_policy(policy),
        vocab=pair.vocab_size,
        ends=sorted(pair.eos_ids),
        block=block,
        seed=arguments.seed or 0,
        plugins=arguments.plugins,
        base=None if base is None else base.path,
        base_revision=None if base is None else base.revision,
        guide_architectures=target.config.architectures,
        guide_rows=rows[1] if len(set(rows)) > 1 else 0,  # drafts want one size; our model class has the target's own
        trust_remote_code=arguments.trust_remote_code,
    )
    options: dict[str, Any] = {
        "model": target.path,
        "revision": target.revision,
        "tokenizer": pair.members[-1].path,
        "tokenizer_revision": pair.members[-1].revision,
        "dtype": _choose_dtype(arguments, pair, policy),
        "max_model_len": _choose_length(arguments, pair, engine_options),
        "trust_remote_code": arguments.trust_remote_code,
        "generation_config": "vllm",
        "logits_processors": [CHECK if choose_runner() else PROCESSOR],
    }
    overrides: dict[str, Any] = {"takeover": asdict(settings), "architectures": [ARCHITECTURE]}
    if settings.guide_rows:
        overrides["vocab_size"] = rows[0]
    if block == 1:
        return options | engine_options | {"hf_overrides": overrides, "worker_extension_cls": EXTENSION}
    drafter, ranks = pair.member(drafting), engine_options.get("tensor_parallel_size", 1)
    draft: dict[str, Any] = {"method": "draft_model", "model": drafter.path, "revision": drafter.revision}
    draft |= {"num_speculative_tokens": block, "draft_tensor_parallel_size": ranks}
    if "kv_cache_dtype" in engine_options:
        draft["kv_cache_dtype"] = engine_options["kv_cache_dtype"]
    if arguments.block_size == "auto":
        draft["num_speculative_tokens_per_batch_size"] = drafts.ranges
    return options | engine_options | {"hf_overrides": overrides, "worker_cls": WORKER, "speculative_config": draft}


def list_words(options: Mapping[str, Any]) -> list[str]:
    """Engine arguments as words of a `vllm serve` command."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(option if value else "--no-" + name.replace("_", "-"))
        elif isinstance(value, list):
            words += [option, *map(str, value)]
        elif value is not None:
            words += [option, json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def choose_runner() -> bool:
    """Whether vLLM uses model runner V2: on a GPU, or if a user asks. Tells all processes of vLLM by a variable."""
    from vllm import envs
    from vllm.platforms import current_platform

    os.environ.setdefault(RUNNER, "0" if current_platform.is_cpu() else "1")
    return bool(envs.environment_variables[RUNNER]())  # read again: vLLM caches the value of its first engine


def refuse_others(arguments: ModelArguments) -> None:
    """Raises ArgumentError for an argument of the transformers engines that has no counterpart here."""
    for name, value in arguments.differing().items():
        if name in VLLM_INSTEAD:
            raise ArgumentError(f"{name}={value} is read by backend=hf; backend=vllm has {VLLM_INSTEAD[name]} instead")


def _choose_dtype(arguments: ModelArguments, pair: Pair, policy: Policy) -> str:
    """The one dtype of both models. Raises ArgumentError if `hf` would compute them in different ones."""
    if arguments.guide_dtype not in (None, arguments.dtype):
        raise ArgumentError(
            f"guide_dtype={arguments.guide_dtype} beside dtype={arguments.dtype}: backend=vllm has one dtype for both models; "
            f"leave guide_dtype out"
        )
    if arguments.dtype != "auto":
        return arguments.dtype.removeprefix("torch.")
    # The checkpoints' own, which vLLM would change (float32 to bfloat16).
    own = {role: pair.member(role).weights.dtype.removeprefix("torch.") for role in policy.roles}
    if len(set(own.values())) > 1:
        raise ArgumentError(
            f"dtype=auto: the checkpoints have different dtypes (base {own['base']}, guide {own['guide']}), and backend=vllm has "
            f"one for both models; give dtype={own['guide']} or another"
        )
    return own[policy.roles[0]]


def check_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for vLLM's engine. Raises ArgumentError for unknown ones and those that are ours."""
    from vllm.engine.arg_utils import EngineArgs

    if (stages := arguments.get("pipeline_parallel_size", 1)) != 1:
        raise ArgumentError(
            f"pipeline_parallel_size={stages}: the gate compares the logits of both models in one process; give "
            f"tensor_parallel_size={stages} instead"
        )
    names = {field.name for field in fields(EngineArgs)} - {"block_size"} | {_CACHE_BLOCK, *_LIMITS}
    for name, value in arguments.items():
        if name in _OURS:
            raise ArgumentError(f"{name}={value} is set by this package; give base, guide, block_size or plugins instead")
        if name not in names:
            ours = {field.name for field in fields(ModelArguments)}
            raise ArgumentError(f"unknown model argument '{name}'; {nearest(name, names | ours)}")
    given = {name: value for name, value in arguments.items() if name not in _LIMITS}
    return {"block_size" if name == _CACHE_BLOCK else name: value for name, value in given.items()}


def _choose_length(arguments: ModelArguments, pair: Pair, options: dict[str, Any]) -> int | None:
    """Tokens of context. Raises ArgumentError for more than both models can read."""
    length = options.pop("max_model_len", None)
    if length is not None and arguments.max_length is not None:
        raise ArgumentError(f"max_model_len={length} and max_length={arguments.max_length} say the same; give one of them")
    length = arguments.max_length if length is None else length
    for member in pair.members:
        if length is not None and member.max_length is not None and int(length) > member.max_length:
            raise ArgumentError(
                f"max_model_len={length} is more than the {member.max_length} tokens that {member.role}='{member.id.id}' can "
                f"read; both models read every token, so give at most {pair.max_length}"
            )
    return pair.max_length if length is None else int(length)


def check_architectures(pair: Pair, policy: Policy) -> None:
    """Raises ArgumentError for a model that vLLM has no class for, or none that shares an engine with another decoder."""
    from vllm import ModelRegistry

    register()
    supported = ModelRegistry.get_supported_archs()
    for role in policy.roles:
        config = pair.member(role).config
        names = config.architectures or [config.model_type]
        obstacle = ""
        if not any(name in supported for name in names):
            obstacle = "which vLLM does not know"
        elif config.get_text_config() is not config:
            obstacle = "which reads more than text: backend=vllm has models of text alone"
        elif states := list_layer_kinds(config) - {DynamicLayer, DynamicSlidingWindowLayer}:
            obstacle = f"whose {min(kind.__name__ for kind in states)} keeps a state: backend=vllm has attention alone"
        if obstacle:
            raise ArgumentError(f"{role}='{pair.member(role).id.id}' is a {names[0]}, {obstacle}; run it with backend=hf")
        check_heads(pair.member(role))


def check_heads(member: Member) -> None:
    """Raises ArgumentError for heads of a size that vLLM lacks on a CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    text, known = member.config.get_text_config(), CPUAttentionBackend.get_supported_head_sizes()
    layers = getattr(text, "per_layer_config", None) or [text]
    sizes = {int(getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads) for own in layers}
    if lacking := sizes - {*known}:
        problem = f"heads of {max(lacking)}, and vLLM computes with {', '.join(map(str, sorted(known)))} on a CPU"
        raise ArgumentError(f"{member.role}='{member.id.id}' has {problem}; run it on a GPU, or with backend=hf")


def start_engine(options: Mapping[str, Any], pair: Pair) -> Any:
    """vLLM's `LLM` with these options. Raises ArgumentError, one line, for what it refuses."""
    from vllm import LLM

    try:
        return LLM(**options)
    except ArgumentError:
        raise
    except Exception as error:
        names = " and ".join(f"{member.role}='{member.id.id}'" for member in pair.members)
        raise ArgumentError(f"vLLM cannot start with {names}: {explain(error)}") from error


def explain(error: Exception) -> str:
    """The first useful line of vLLM's error, with advice if there is any."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__ == "ValidationError" and len(lines) > 1:  # pydantic's: the first line counts the errors
        refused = [line.removeprefix("Value error, ") for line in lines if line.startswith("Value error")]
        lines = refused or [": ".join(lines[1:3]).partition(" [type=")[0]]  # the field, and what is wrong with it
    line = lines[0] if lines else type(error).__name__
    if "root cause above" in line:  # the process that ended has printed it
        return f"its engine ended as it started, and its own error stands above; if that is about memory, {_MEMORY}"
    if line.startswith("Model Runner V2 does not"):
        return f"{line}; V1 may, with {RUNNER}=0 in the environment"
    if any(word in str(error).lower() for word in ("memory", "kv cache", "cache blocks")):
        reason = line.partition(" Try ")[0].rstrip(".")  # vLLM's own advice is for its own options
        return f"{reason}; {_MEMORY}"
    return line
