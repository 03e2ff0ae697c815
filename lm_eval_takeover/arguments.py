"""The model arguments of `lm_eval --model guided-takeover --model_args …`, checked once when they come in.

Each field of `ModelArguments` says what it is for (`ArgumentKind`) and what vLLM has instead; all other lists are derived.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from os.path import expanduser
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, get_args, get_type_hints

from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.storage.schema import Positive, check, describe

DEFAULT_POLICY = "disagreement"

OTHERS_NAMES = {  # arguments of lm-eval's `hf` and `vllm`, with what this model type has instead
    "pretrained": "base=… and guide=… name the two models",
    "tokenizer": "each model is read with the tokenizer of its own checkpoint",
    "delta": "give base=… or guide=… a merged checkpoint, or peft=… an adapter",
    "lora_local_path": "give base=… or guide=… a merged checkpoint",
    "parallelize": "device_map=auto spreads the layers over all devices",
    **dict.fromkeys(
        ("max_memory_per_gpu", "max_cpu_memory", "offload_folder"), "device_map={…} names the device of each layer"
    ),
    **dict.fromkeys(
        ("bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant"),
        'quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": true, …} has this setting',
    ),
}


@dataclass(frozen=True, slots=True)
class ArgumentKind:
    """What a model argument is for."""

    # The part of a sample's key through which it changes the text, or `verdict`; None: it changes neither.
    key: str | None = None
    loads: bool = False  # a model is loaded by it
    own: bool = False  # it belongs to one repository, so the guide does not take the base's
    named: bool = False  # it says which model it is and runs no code; only these are taken from a stored run


FILES = ArgumentKind("models", loads=True, own=True, named=True)
ADAPTER = ArgumentKind("models", loads=True, own=True)
DTYPE = ArgumentKind("models", loads=True, named=True)
QUANTIZATION = ArgumentKind("models", loads=True)
CODE = ArgumentKind("trust_remote_code", loads=True)
ENCODING = ArgumentKind("request", loads=True)  # it changes the ids of a prompt
PLACE = ArgumentKind(loads=True)
METHOD, PROMPT, SEED, ENGINE = ArgumentKind("policy"), ArgumentKind("request"), ArgumentKind("seed"), ArgumentKind("backend")
VERDICT = ArgumentKind("verdict")  # it changes how a text is read
RUN = ArgumentKind()  # speed, labels and files


def _argument(default: Any, kind: ArgumentKind, vllm: str | None = None) -> Any:
    """A field with this default. `vllm` is what `backend=vllm` has instead of it."""
    return field(default=default, metadata={"kind": kind, "vllm": vllm})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelArguments:
    """Every model argument with its default. The `#:` comment says what it means, and what None stands for; docs/arguments.md
    is made of them (scripts/write_docs_tables.py). `guide_NAME` is the guide's twin of NAME and is of its kind.

    Raises ArgumentError for an unknown name, with the nearest known one, and for a value of the wrong type or range.
    """

    #: The model that writes by default: hub id, `id@revision`, or a local folder. None: the bundled demo pair
    base: str | None = _argument(None, FILES)
    #: The reasoning model that takes over, named in the same way. None: the bundled demo pair
    guide: str | None = _argument(None, FILES)
    #: `hf` is transformers, `vllm` is vLLM, which takes its own engine arguments too.
    backend: Literal["hf", "vllm"] = _argument("hf", ENGINE)
    #: Who may write a token: `disagreement`, `entropy`, `random`, `early`, `base`, `guide`, `segment`, `lossy`, `ensemble`, or a
    #: plug-in's.
    policy: str = _argument(DEFAULT_POLICY, METHOD)
    #: Score of the gate: `ce`, `rkl`, `js`, `entropy`, `margin`, `confidence`, `top1`, `surprise`, `log_ratio`, or a plug-in's.
    #: None: `ce`; `entropy` for that policy
    score: str | None = _argument(None, METHOD)
    #: With `js`: truncate both distributions to this top-p first. `target_rate` is solved for it.
    score_top_p: float = _argument(1.0, METHOD)
    #: A packaged name, a path, or `NAME:COLUMN` of a published table. None: the packaged one of this pair, if any
    calibration: str | None = _argument(None, METHOD)
    #: Accept a calibration of another pair, direction, prompt form or sampling.
    allow_calibration_mismatch: bool = _argument(False, RUN)
    #: Share of calibration tokens above the threshold, 0.001 to 0.5. The realized rate is usually lower. None: 0.03
    spike_ratio: float | None = _argument(None, METHOD)
    #: Instead of `spike_ratio`: a realized rate from the calibration's `--target_rate`. None: `spike_ratio` is used
    target_rate: float | None = _argument(None, METHOD)
    #: Threshold of the gate in nats, set by hand; then no calibration is read. None: the calibration's
    tau: float | None = _argument(None, METHOD)
    #: Factor of the window test, set by hand with `tau`; 0 turns it off. None: the calibration's; 0 with `tau`
    kappa: float | None = _argument(None, METHOD)
    #: Number of earlier tokens in the window test.
    window: Positive = _argument(10, METHOD)
    #: Which `kappa` of the calibration: `threshold_to_mean` or `tail_to_mean`. None: `threshold_to_mean`
    kappa_rule: str | None = _argument(None, METHOD)
    #: With a gate: the probability with which a position is taken over where it fires; it sets the rate of `top1`. None: 1
    chance: float | None = _argument(None, METHOD)
    #: `forward`; `reverse` lets the base take over from the guide.
    direction: str = _argument("forward", METHOD)
    #: With `random` and `early`: the share of tokens to take over. None: needed by `random`
    rate: float | None = _argument(None, METHOD)
    #: With `early`: the number of first tokens, instead of `rate`. None: `early` needs this or `rate`
    early_tokens: int | None = _argument(None, METHOD)
    #: Tokens that the host drafts before the donor checks them: a number, 1 for lockstep, or `auto`. It changes the
    #: speed, not the text.
    block_size: Positive | Literal["auto"] = _argument("auto", RUN)
    #: Seed of the random numbers. It wins over lm-eval's `--seed`. None: lm-eval's `--seed` (the third, torch's), else `0`
    seed: int | None = _argument(None, SEED)
    #: Dtype of the weights, as in lm-eval's `hf`.
    dtype: str = _argument("auto", DTYPE)
    #: Device, as in lm-eval's `hf`. None: the GPU if there is one
    device: str | None = _argument(None, PLACE)
    #: Device of the guide. None: `device`
    guide_device: str | None = _argument(None, PLACE, vllm="one device for both models")
    #: Dtype of the guide. None: `dtype`
    guide_dtype: str | None = None
    #: Samples at a time; `auto` takes as many as fit if every sample reaches its limit. If memory runs out, the batch is
    #: halved and the run goes on.
    batch_size: Positive | Literal["auto"] = _argument(1, RUN)
    #: Largest value of `batch_size=auto`. None: 64
    max_batch_size: Positive | None = _argument(None, RUN)
    #: Context in tokens. None: the shorter context of the two models
    max_length: Positive | None = _argument(None, PROMPT)
    #: New tokens, if the task sets no limit.
    max_gen_toks: Positive = _argument(256, PROMPT)
    #: Passed to the guide's chat template. None: the template's own
    enable_thinking: bool | None = _argument(None, PROMPT)
    #: As in lm-eval's `hf`: whether prompts begin with the tokenizer's BOS. None: the tokenizer's own
    add_bos_token: bool | None = _argument(None, ENCODING)
    #: The same for the guide, whose tokenizer encodes the prompts of both. None: `add_bos_token`
    guide_add_bos_token: bool | None = None
    #: Text or id of the token that ends the model's thinking: what follows is read as the answer. The usual tags, such as
    #: `</think>`, are known without it. None: these
    think_end_token: str | int | None = _argument(None, VERDICT)
    #: As in lm-eval's `hf`. Without it, checkpoints load from safetensors only.
    trust_remote_code: bool = _argument(False, CODE)
    #: Branch, tag or commit of the base's repository; `base=id@revision` is the same. None: the default branch
    revision: str | None = _argument(None, FILES)
    #: The same for the guide. None: the default branch
    guide_revision: str | None = None
    #: Folder inside the base's repository, as in lm-eval's `hf`. None: its top
    subfolder: str | None = _argument(None, FILES, vllm="a local folder")
    #: The same for the guide. None: its top
    guide_subfolder: str | None = None
    #: A GGUF file of the base's repository, as in lm-eval's `hf`. None: safetensors
    gguf_file: str | None = _argument(None, FILES, vllm="safetensors")
    #: The same for the guide. None: safetensors
    guide_gguf_file: str | None = None
    #: A PEFT adapter on the base: hub id, `id@revision`, or a local folder. None: no adapter
    peft: str | None = _argument(None, ADAPTER, vllm="a merged checkpoint")
    #: The same for the guide. None: no adapter
    guide_peft: str | None = None
    #: `auto` spreads the layers of both models over all devices (accelerate); or `balanced`, `sequential`, a map. None: `device`
    device_map: str | dict[str, Any] | None = _argument(None, PLACE, vllm="tensor_parallel_size=…")
    #: The same for the guide. None: `device_map`
    guide_device_map: str | dict[str, Any] | None = None
    #: `sdpa`, `eager`, `flash_attention_2`, …, as transformers takes it. None: transformers' choice
    attn_implementation: str | None = _argument(None, PLACE, vllm="attention_backend=…")
    #: The same for the guide. None: `attn_implementation`
    guide_attn_implementation: str | None = None
    #: Quantize the weights of both models while loading, by bitsandbytes.
    load_in_4bit: bool = _argument(False, QUANTIZATION, vllm="quantization=bitsandbytes")
    #: The same for the guide. None: `load_in_4bit`
    guide_load_in_4bit: bool | None = None
    #: The same with 8 bits.
    load_in_8bit: bool = _argument(False, QUANTIZATION, vllm="quantization=bitsandbytes")
    #: The same for the guide. None: `load_in_8bit`
    guide_load_in_8bit: bool | None = None
    #: Any quantization of transformers: a map with its `quant_method`, in JSON. None: the checkpoint's own
    quantization_config: dict[str, Any] | None = _argument(None, QUANTIZATION, vllm="quantization=…")
    #: The same for the guide. None: `quantization_config`
    guide_quantization_config: dict[str, Any] | None = None
    #: Label of the run: its folder under lm-eval's `--output_path`, and `label` in `config.takeover`. None:
    #: `BASE+GUIDE-policy`
    model: str | None = _argument(None, RUN)
    #: Folder for finished samples and traces; needed to resume a run. None: no files
    run_dir: str | None = _argument(None, RUN)
    #: Files or modules with your own scores and policies, joined by `+`. None: no plug-in
    plugins: str | None = _argument(None, METHOD)
    # What only the chosen policy reads: the fields of its class, each a model argument.
    policy_arguments: Mapping[str, Any] = field(default_factory=dict, metadata={"kind": METHOD})
    # What only vLLM reads: arguments of its engine, such as `tensor_parallel_size`.
    engine_arguments: Mapping[str, Any] = field(default_factory=dict, metadata={"kind": ENGINE})

    @classmethod
    def parse(cls, values: dict[str, Any], own: Mapping[str, Any] | None = None) -> Self:
        """From lm-eval's keyword arguments, whose values its command line has turned into numbers where it could.

        `own` are the types of arguments that only the chosen policy has; they go into `policy_arguments`. With
        `backend=vllm` unknown ones go into `engine_arguments`, as they are.
        """
        hints = {**get_type_hints(cls, include_extras=True), **(own or {})}
        del hints["policy_arguments"], hints["engine_arguments"]
        unknown = [name for name in values if name not in hints]
        engine_arguments: dict[str, Any] = {}
        if values.get("backend") == "vllm":
            engine_arguments = {name: values[name] for name in unknown}
            values = {name: value for name, value in values.items() if name in hints}
        elif unknown:
            advice = OTHERS_NAMES.get(unknown[0]) or nearest(unknown[0], hints)
            raise ArgumentError(f"unknown model argument '{unknown[0]}'; {advice}")
        typed = {name: _typed(name, value, hints[name]) for name, value in values.items()}
        policy_arguments = {name: typed.pop(name) for name in own or {} if name in typed}
        return cls(**typed, policy_arguments=policy_arguments, engine_arguments=engine_arguments)

    def __post_init__(self) -> None:
        for name in ("spike_ratio", "target_rate"):
            if (share := getattr(self, name)) is not None and not 0 < share < 1:
                raise ArgumentError(f"{name}={share} is outside 0..1; for 5 % of the tokens give 0.05")
        if self.target_rate is not None and self.spike_ratio is not None:
            raise ArgumentError(f"give target_rate={self.target_rate} or spike_ratio={self.spike_ratio}, not both")
        wanted = dict.fromkeys(("base", "guide"), "a hub id or a local folder")
        wanted |= {"model": "a label for this run, or leave it out", "run_dir": "a folder; it is created if needed"}
        for name, expected in wanted.items():
            if getattr(self, name) == "":
                raise ArgumentError(f"{name}= is empty; expected {expected}")
        for gate, read in product(("tau", "kappa"), ("calibration", "spike_ratio", "target_rate", "kappa_rule")):
            tau, value = getattr(self, gate), getattr(self, read)
            if tau is not None and value is not None:
                raise ArgumentError(f"{gate}={tau} sets the gate by hand, so {read}={value} would be ignored; give one")
        if self.kappa is not None and self.tau is None:
            raise ArgumentError(f"kappa={self.kappa} sets the gate by hand and needs tau=… too")

    def for_role(self, role: str) -> Self:
        """As they hold for one model: for the guide its twins, where given or where the base's are of another repository."""
        if role == "base":
            return self
        own = {name: getattr(self, twin) for name, twin in TWINS.items()}
        return replace(self, **{name: value for name, value in own.items() if value is not None or KINDS[name].own})

    def differing(self) -> dict[str, Any]:
        """Those that are not at their defaults, as `parse` reads them."""
        default = type(self)()
        values = {name: getattr(self, name) for name in _FIELDS if name not in ("policy_arguments", "engine_arguments")}
        given = {name: value for name, value in values.items() if value != getattr(default, name)}
        return {**given, **self.policy_arguments, **self.engine_arguments}

    @property
    def quantization(self) -> dict[str, Any]:
        """What quantizes the model of these arguments as it is loaded."""
        names = (name for name, kind in KINDS.items() if kind == QUANTIZATION and name not in TWINS.values())
        return {name: value for name in names if (value := getattr(self, name))}

    @property
    def rows(self) -> int:
        """The batch size in samples; for `auto` the most that it may be, 64 or `max_batch_size` where that is smaller."""
        if isinstance(self.batch_size, int):
            return self.batch_size
        return min(64, self.max_batch_size or 64)


_FIELDS = {each.name: each for each in fields(ModelArguments)}
# The guide's twin of each argument that has one.
TWINS: Mapping[str, str] = {name: f"guide_{name}" for name in _FIELDS if f"guide_{name}" in _FIELDS}


def _read_metadata(key: str) -> dict[str, Any]:
    """The metadata of each argument; a twin without any has that of its argument."""
    metadata = {name: each.metadata or _FIELDS[name.removeprefix("guide_")].metadata for name, each in _FIELDS.items()}
    return {name: metadata.get(key) for name, metadata in metadata.items()}


KINDS: Mapping[str, ArgumentKind] = _read_metadata("kind")
VLLM_INSTEAD: Mapping[str, str] = {name: instead for name, instead in _read_metadata("vllm").items() if instead}


def check_folder(role: str, name: str) -> None:
    """Raises ArgumentError for a name that can only be a local folder (perhaps with `@revision`), and is none."""
    path = name.partition("@")[0]
    if name.startswith(("/", ".", "~")) and not any(Path(expanduser(folder)).is_dir() for folder in (name, path)):
        raise ArgumentError(f"{role}='{path}' cannot be loaded: there is no such folder; give one, or a hub id")


def split_plugins(names: str | None) -> list[tuple[str, Path | None]]:
    """Each of `plugins` with its file, None for a module. Raises ArgumentError for a file that is missing or not of Python."""
    found = list[tuple[str, Path | None]]()
    for name in filter(None, (names or "").split("+")):
        path = Path(expanduser(name))
        if (path.suffix == ".py") != path.is_file():
            wrong = "no Python file (NAME.py)" if path.is_file() else "no file"
            raise ArgumentError(f"plugins='{name}' is {wrong}; expected a Python file or an importable module")
        found.append((name, path if path.is_file() else None))
    return found


TRUTHS = ("enable_thinking",)  # options that take True or False; any other that is true is a flag


def write_words(options: Mapping[str, Any]) -> list[str]:
    """The words of a command that has these options, for people. None is left out."""
    words = []
    for name, value in options.items():
        if value is None or (value is False and name not in TRUTHS):
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += map(str, value)
        elif isinstance(value, Mapping):
            words.append(join_arguments(value))
        elif value is not True or name in TRUTHS:
            words.append(f"{value:.12g}" if isinstance(value, float) else str(value))
    return words


def join_arguments(values: Mapping[str, Any]) -> str:
    """`NAME=VALUE,…` as lm-eval reads it, or a map in JSON where a value is a map or holds a comma."""
    if any(isinstance(value, Mapping) or "," in str(value) for value in values.values()):
        return json.dumps(values, default=str)
    return ",".join(f"{name}={value}" for name, value in values.items())


_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def _typed(name: str, value: Any, hint: Any) -> Any:
    """`value` in the type that the argument has: what it stands for, or its text."""
    if value is None or value == "None":
        if NoneType in get_args(hint):
            return None
        raise ArgumentError(f"{name}={value} has no value; leave it out for its default")
    if name == "batch_size" and str(value).partition(":")[0] == "auto":
        return "auto"
    if isinstance(value, str) and _NO_TEXT.search(value):  # lm-eval could not write the results
        raise ArgumentError(f"{name}={value!r} holds a character that UTF-8 or the names of files do not have; leave it out")
    is_text = isinstance(value, (str, Path, int, float)) or type(value).__name__ in ("dtype", "device")  # torch's
    for candidate in (_read(value), *([str(value)] if is_text and not isinstance(value, bool) else [])):
        with contextlib.suppress(ValueError):
            return check(candidate, hint)
    raise ArgumentError(f"{name}={value!r} is not {describe(hint).removesuffix(' or null')}")


def _read(value: Any) -> Any:
    """What a text stands for: true or false, a number, or a map in JSON."""
    read = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            read = json.loads(value.lower() if value.lower() in ("true", "false") else value)
    if isinstance(read, float) and read.is_integer():
        return int(read)
    return read if isinstance(read, (bool, int, float, Mapping)) else value
