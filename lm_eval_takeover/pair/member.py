"""One checkpoint of the pair: what transformers loads of it, whether all of it was there, and its own forward pass."""

import contextlib
import inspect
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, BitsAndBytesConfig, Cache, GenerationConfig
from transformers.cache_utils import CacheLayerMixin
from transformers.models.auto import modeling_auto
from transformers.quantizers.auto import AutoQuantizationConfig

from lm_eval_takeover.arguments import ModelArguments, check_folder
from lm_eval_takeover.errors import ArgumentError, ModelOutputError, first_line
from lm_eval_takeover.pair.ids import ask_revision, check_source, find_folder, identify, locate
from lm_eval_takeover.pair.vocabulary import Vocabulary, adds_bos, check_token_ids

logger = logging.getLogger(__name__)

Dtype = str | torch.dtype
_BOS_FAMILIES = ("gemma",)  # by the beginning of their model types


class Weights(NamedTuple):
    """What a run says of a model's weights. `parameters` as the configuration has them, before any quantization."""

    dtype: str
    parameters: int


class Member:
    """One model of the pair, with its own model arguments. Reads tokenizer and configuration at once, weights at first use."""

    def __init__(
        self, role: str, name: str, *, device: str = "cpu", dtype: Dtype = "auto", given: ModelArguments | None = None
    ) -> None:
        self.role = role
        self.given = given or ModelArguments()
        quantized = [name for name in ("load_in_4bit", "load_in_8bit", "quantization_config") if getattr(self.given, name)]
        if len(quantized) > 1:
            raise ArgumentError(f"{' and '.join(quantized)} of the {role} exclude each other; give one of them")
        self.path, named = locate(name)
        if named and self.given.revision not in (None, named):
            raise ArgumentError(f"{role}='{name}' contradicts {self.argument('revision')}={self.given.revision}")
        check_source(role, name)
        if self.given.peft is not None:
            check_folder(self.argument("peft"), self.given.peft)
        self.revision = named or self.given.revision  # branch, tag or commit, as asked for
        self.device = torch.device(device)
        self.dtype = dtype  # as asked for; `auto` is the checkpoint's own
        self.loaded_dtype: torch.dtype | None = None  # of the weights, once an engine has them
        self.prepared_pass: Any = None  # the `ForwardPass` of this model, from its first use on
        self.self_check: Any = None  # the `SelfCheck` of this model, from its first use on
        code = {"revision": self.revision, "trust_remote_code": self.given.trust_remote_code}
        self._options: dict[str, Any] = repository_options(self.given) | code
        self.config = self._load(AutoConfig)
        self.loader = self._choose_loader()
        check_token_ids(find_folder(self.path, self.revision, self.given.subfolder))
        asked = self.given.add_bos_token
        self.tokenizer = self._load(AutoTokenizer, **({} if asked is None else {"add_bos_token": asked}))
        self.vocabulary = Vocabulary.of(self.tokenizer, self.config.get_text_config().vocab_size)
        self.id = identify(name, self.path, self.revision, self.given, self._list_code())
        self._check_bos()

    def _check_bos(self) -> None:
        """Warn where the tokenizer leaves out a BOS that its file says it adds or, where it does not say, its family expects."""
        bos = self.tokenizer.bos_token_id
        if bos is None or self.given.add_bos_token is not None or self.encode("a")[:1] == [bos]:
            return
        gguf = self.given.gguf_file
        says = adds_bos(find_folder(self.path, self.revision, self.given.subfolder, gguf) if gguf else self.folder, gguf)
        if self.config.model_type.startswith(_BOS_FAMILIES) if says is None else says:
            problem = f"its tokenizer does not begin texts with '{self.tokenizer.bos_token}', which the model expects"
            advice = f"texts may be noise; give {self.argument('add_bos_token')}=True, or False to leave out this line"
            logger.warning("%s='%s': %s: %s", self.role, self.path, problem, advice)

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids as lm-eval's `hf` makes them: the tokenizer's own special tokens or `add_bos_token`, but no second BOS."""
        bos = getattr(self.tokenizer, "bos_token", None)
        if add_special_tokens is None:
            add_special_tokens = False if bos and text.startswith(bos) else self.given.add_bos_token
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(text, **options))

    def _load(self, kind: Any, **options: Any) -> Any:
        try:
            return kind.from_pretrained(self.path, **self._options, **options)
        except Exception as error:  # each loader raises errors of its own
            where = f" at revision '{self.revision}'" if self.revision else ""
            problem = f"{self.role}='{self.path}'{where} cannot be loaded: {first_line(error)}"
            expected = "" if Path(self.path).is_dir() else " (expected a folder or a hub id, 'owner/name[@revision]')"
            raise ArgumentError(problem + expected) from error

    def _choose_loader(self) -> Any:
        """The transformers class that loads this model, with images where there is no other. Raises ArgumentError for none."""
        kind, remote = self.config.model_type, self.given.trust_remote_code and getattr(self.config, "auto_map", None)
        if remote or kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            return transformers.AutoModelForCausalLM
        if kind not in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and self.given.backend == "hf":
            problem = f"transformers {transformers.__version__} has no class for models of type '{kind}' that writes text"
            raise ArgumentError(f"{self.role}='{self.path}': {problem}; a newer one may have it, or backend=vllm")
        return transformers.AutoModelForImageTextToText

    def _list_code(self) -> dict[str, str]:
        """Files of other repositories whose code it runs, by repository: transformers names it `owner/name--file.Class`."""
        if not self.given.trust_remote_code:
            return {}
        maps = getattr(self.config, "auto_map", None), getattr(self.tokenizer, "init_kwargs", {}).get("auto_map")
        named = re.findall(r'"([^"]+?)--([^".]+)', json.dumps(maps))
        return {other: f"{file}.py" for other, file in named}

    @property
    def folder(self) -> Path:
        """Where its files are: its own folder, or the hub's cache."""
        return find_folder(self.path, self.revision, self.given.subfolder)

    def argument(self, name: str) -> str:
        """The model argument of this name that counts for this model."""
        return f"guide_{name}" if self.role == "guide" else name

    @cached_property
    def model(self) -> Any:
        """The transformers model in eval mode, on its device or devices; loaded at the first use."""
        safe = None if self.given.trust_remote_code or self.given.gguf_file else True
        placed = model_options(self.given, self.device)
        told = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # refused here, by name
        try:
            with without_report():
                model, found = self._load(self.loader, dtype=self.dtype, use_safetensors=safe, **placed, **told)
        except ArgumentError as error:
            if safe and "file named model.safetensors" in str(error):
                raise self._advise_conversion(error) from error
            raise
        check_checkpoint(f"{self.role}='{self.path}'", self.folder, model, found)
        if "device_map" not in placed:
            model = model.to(self.device)
        elif self.given.device_map is not None:
            self.device = next((p.device for p in model.parameters() if p.device.type != "meta"), self.device)
        if self.given.peft is not None:
            model = self._adapt(model, self.given.peft)
        self.loaded_dtype = model.dtype
        return model.eval()

    @cached_property
    def outline(self) -> Any:
        """The transformers model without its weights, on the meta device, in the dtype that it will be loaded in."""
        stored = (dtype for dtype, _ in list_stored(self.folder) if dtype)
        dtype = (self.config.dtype or next(stored, None)) if self.dtype == "auto" else self.dtype
        options = {"trust_remote_code": self.given.trust_remote_code} | ({} if dtype is None else {"dtype": dtype})
        with torch.device("meta"):
            return self.loader.from_config(deepcopy(self.config), **options)  # which writes the dtype into it

    @property
    def weights(self) -> Weights:
        """By the configuration and the headers of files, so that nothing is loaded; in an engine's dtype once one has them."""
        return Weights(str(self.loaded_dtype or self.outline.dtype), self._parameters)

    @cached_property
    def _parameters(self) -> int:
        adapted = 0
        if self.given.peft is not None:
            path, revision = ask_revision(self.given.peft, "adapter_config.json")
            adapted = sum(count for _, count in list_stored(find_folder(path, revision, file="adapter_config.json")))
        return int(self.outline.num_parameters()) + adapted

    def _adapt(self, model: Any, adapter: str) -> Any:
        argument, (path, revision) = self.argument("peft"), ask_revision(adapter, "adapter_config.json")
        options = {} if revision is None or Path(path).is_dir() else {"revision": revision}
        try:
            from peft import PeftConfig, PeftModel
        except ImportError as error:
            raise ArgumentError(f"{argument}='{adapter}' needs the package peft: pip install peft") from error
        try:
            config = PeftConfig.from_pretrained(path, **options)
            if config.is_prompt_learning:
                raise ArgumentError(f"{argument}='{adapter}' changes the prompt; expected one of the layers, such as LoRA")
            adapted = PeftModel(model, config)
            found = adapted.load_adapter(path, "default", **options)
        except ArgumentError:
            raise
        except Exception as error:  # likewise
            raise ArgumentError(f"{argument}='{adapter}' cannot be loaded: {first_line(error)}") from error
        check_adapter(f"{argument}='{adapter}'", find_folder(path, options.get("revision"), file="adapter_config.json"), found)
        return adapted.get_base_model()

    def _advise_conversion(self, error: ArgumentError) -> ArgumentError:
        """The error of a checkpoint without safetensors: a pickle would run code of its author."""
        convert = (
            "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
            f"[one.from_pretrained('{self.path}').save_pretrained('converted') for one in (M, T)]"
        )
        return ArgumentError(
            f"{error}; weights in a pickle are not read, since it can run any code; where you trust it, convert it once with "
            f'`python -c "{convert}"` and give {self.role}=converted, or pass trust_remote_code=True'
        )

    @cached_property
    def forward_arguments(self) -> frozenset[str]:
        return frozenset(inspect.signature(type(self.model).forward).parameters)

    @cached_property
    def cache_argument(self) -> str | None:
        """The argument that takes a cache; None for architectures with a state of their own kind, which is not kept."""
        supports = getattr(self.model, "_supports_default_dynamic_cache", None)  # remote code may be without
        if supports is not None and not supports():
            return None
        names = ("cache", "past_key_values", "cache_params")  # the first in later versions of transformers
        return next((name for name in names if name in self.forward_arguments), None)

    def compute_logits(self, ids: Tensor, mask: Tensor, *, cache: Cache | None = None, keep: int = 1) -> Tensor:
        """One forward pass: float32 logits `[rows, keep, vocab]` of the last `keep` positions.

        ids `[rows, new]` are read after what the cache holds; mask `[rows, cached + new]` is 0 on left padding.
        """
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        options: dict[str, Any] = {"attention_mask": mask, "position_ids": positions, "logits_to_keep": keep}
        if cache is not None:
            assert self.cache_argument is not None
            options[self.cache_argument] = cache
            if mask.shape[1] > ids.shape[1] and not any(isinstance(layer, CacheLayerMixin) for layer in cache.layers):
                del options["attention_mask"]  # as `generate` does: a state has no padding columns
        read = {name: value for name, value in options.items() if name in self.forward_arguments}
        output = self.model(input_ids=ids, use_cache=cache is not None, **read)
        logits: Tensor = output.logits[:, -keep:]
        return logits.float()

    def check_logits(self, logits: Tensor, name_row: Callable[[int], str], real: Tensor | None = None) -> None:
        """Raises ModelOutputError for the first row of `[rows, ..., vocab]` with NaN, +inf or only -inf, at positions `real`."""
        broken = ~logits.amax(-1).isfinite()
        if real is not None:
            broken &= real
        if broken.any():
            raise self.refuse_logits(name_row(int(broken.nonzero()[0][0])))

    def refuse_logits(self, name: str) -> ModelOutputError:
        problem = f"{self.role} '{self.id.id}' returned NaN or infinite logits for {name}"
        return ModelOutputError(f"{problem}; try {self.argument('dtype')}=float32")

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The token ids that end this model's text, as transformers' `generate` and lm-eval's `hf` see them."""
        ids = None
        with contextlib.suppress(OSError):
            where = {"revision": self.revision, "subfolder": self.given.subfolder or ""}
            ids = GenerationConfig.from_pretrained(self.path, **where).eos_token_id
        ids = self.config.get_text_config().eos_token_id if ids is None else ids
        listed = ids if isinstance(ids, Iterable) else [ids]
        return frozenset(i for i in (*listed, self.tokenizer.eos_token_id) if i is not None)

    @property
    def max_length(self) -> int | None:
        """The longest context in tokens, where the configuration or the tokenizer says so."""
        config = self.config.get_text_config()
        lengths = [getattr(config, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx")]
        if self.tokenizer.model_max_length < 10**9:  # transformers' "no limit" is 10^30
            lengths.append(self.tokenizer.model_max_length)
        return next((int(length) for length in lengths if length), None)

    @cached_property
    def rotation_length(self) -> int | None:
        """The longest text, in tokens, that longrope and dynamic NTK do not rotate otherwise as a whole; None for others."""
        text = self.config.get_text_config()
        rope = getattr(text, "rope_parameters", None) or {}
        kinds = {kind.get("rope_type"): kind for kind in (rope, *rope.values()) if isinstance(kind, dict)}
        lengths = [kinds["longrope"]["original_max_position_embeddings"]] if "longrope" in kinds else []
        return min([*lengths, *([text.max_position_embeddings] if "dynamic" in kinds else [])], default=None)

    @property
    def outgrows_rotation(self) -> bool:
        """Whether texts may be longer than `rotation_length`: passes then rotate by their longest row."""
        longest = self.given.max_length or self.max_length or 0
        return self.rotates_again(0, longest)

    def rotates_again(self, before: int, length: int) -> bool:
        """Whether a cache of `before` tokens is rotated otherwise than a text of `length` tokens."""
        return self.rotation_length is not None and before <= self.rotation_length < length


# Options of transformers' `from_pretrained`, from the model arguments of one role (`for_role`)


def repository_options(arguments: ModelArguments) -> dict[str, Any]:
    """For the configuration, the tokenizer and the weights: where in the repository they are."""
    options = {"revision": arguments.revision, "subfolder": arguments.subfolder, "gguf_file": arguments.gguf_file}
    return {name: value for name, value in options.items() if value is not None}


def model_options(arguments: ModelArguments, device: torch.device) -> dict[str, Any]:
    """For the weights alone. Raises ArgumentError for a quantization that cannot be had."""
    options: dict[str, Any] = {"attn_implementation": arguments.attn_implementation}
    if (quantization := _find_quantization(arguments)) is not None:
        options |= {"quantization_config": quantization, "device_map": {"": str(device)}}
    if arguments.device_map is not None:
        options |= {"device_map": arguments.device_map, "offload_folder": "./offload"}
    return {name: value for name, value in options.items() if value is not None}


def _find_quantization(arguments: ModelArguments) -> Any:
    """The configuration that the arguments ask for; a checkpoint's own needs none."""
    try:
        if arguments.quantization_config is not None:
            return AutoQuantizationConfig.from_dict(dict(arguments.quantization_config))
        if not (arguments.load_in_4bit or arguments.load_in_8bit):
            return None
        return BitsAndBytesConfig(load_in_4bit=arguments.load_in_4bit, load_in_8bit=arguments.load_in_8bit)
    except (AttributeError, KeyError, TypeError, ValueError, ImportError) as error:
        raise ArgumentError(f"the quantization cannot be set up: {error} (expected what transformers takes)") from error


# What the headers of safetensors files say

_STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def list_stored(folder: Path) -> Iterator[tuple[torch.dtype | None, int]]:
    """`(dtype, None for one of whole numbers; how many numbers)` of each weight of a folder, in the order of its files."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for header in map(weights.get_slice, weights.keys()):
                yield _STORED.get(header.get_dtype()), math.prod(header.get_shape())


SHOWN = 3  # names that an error lists
# Buffers that a model computes by itself, which older code saves nevertheless.
_COMPUTED = re.compile(r"(^|\.)(inv_freq|masked_bias|position_ids|attn\.bias|attention\.bias)$")
_WEIGHTS = ("*.index.json", "*.safetensors", "*.bin", "*.gguf")


@contextlib.contextmanager
def without_report() -> Iterator[None]:
    """Meanwhile transformers does not print its table of missing and surplus weights: the checks below say it in a line."""
    loader = logging.getLogger("transformers.modeling_utils")

    def is_other(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    loader.addFilter(is_other)
    try:
        yield
    finally:
        loader.removeFilter(is_other)


def check_checkpoint(named: str, folder: Path, model: Any, found: Mapping[str, Any]) -> None:
    """Raises ArgumentError for weights that were not read, by transformers' `output_loading_info`. Tied ones are not missing."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ArgumentError(f"{named} is an adapter; give the model that it is for here, and this folder as peft=…")
    buffers = dict(model.named_buffers())
    missing = sorted(name for name in found["missing_keys"] if not (name in buffers and _COMPUTED.search(name)))
    surplus = sorted(found["unexpected_keys"])
    shapes = [f"{name} is {_describe(has)}, not {_describe(needs)}" for name, has, needs in sorted(found["mismatched_keys"])]
    if shapes:
        _refuse(named, folder, f"has {len(shapes)} weights of another shape than its configuration says", shapes, [])
    if missing:
        _refuse(named, folder, f"lacks {len(missing)} of the model's {len(model.state_dict())} weights", missing, surplus)
    if surplus:
        logger.warning("%s holds %d weights that the model does not read: %s", named, len(surplus), _list(surplus))


def check_adapter(named: str, folder: Path, found: Any) -> None:
    """The same for what `load_adapter` of peft returns; an adapter's surplus weight is one that was to change the model."""
    missing, surplus = sorted(found.missing_keys), sorted(found.unexpected_keys)
    if missing:
        _refuse(named, folder, f"lacks {len(missing)} of the adapter's weights", missing, surplus)
    if surplus:
        _refuse(named, folder, f"has {len(surplus)} weights that belong to no layer of the model", surplus, [])


@contextlib.contextmanager
def refuse_unread(models: Mapping[str, nn.Module]) -> Iterator[None]:
    """Raises ArgumentError for weights of these models, by role, into which not all was read meanwhile."""
    named = {f"{role}.{name}": weight.data for role, model in models.items() for name, weight in model.named_parameters()}
    weights = {name: weight for name, weight in named.items() if weight.is_floating_point() and weight.itemsize > 1}
    for weight in weights.values():
        weight.fill_(math.nan)
    yield
    # vLLM joins projections, and counts the joined one as read after its first part.
    unread = [name for name, weight in weights.items() if weight.sum(dtype=torch.float32).isnan()]
    if unread:
        raise ArgumentError(
            f"the checkpoints lack {len(unread)} of their models' weights: {_list(unread)}; download them again"
        )


def _refuse(named: str, folder: Path, problem: str, names: Sequence[str], surplus: Sequence[str]) -> None:
    files = [file.name for pattern in _WEIGHTS for file in sorted(folder.glob(pattern))] if folder.is_dir() else []
    where = f" ('{files[0]}')" if files else ""
    instead = f"; it has these instead: {_list(surplus)}" if surplus else ""
    raise ArgumentError(f"{named}{where} {problem}: {_list(names)}{instead}; save or download it again")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _describe(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
