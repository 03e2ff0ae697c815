"""The pair: a base and a guide that share a vocabulary, loaded with transformers."""

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Cache, GenerationConfig

from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, ModelOutputError
from lm_eval_takeover.method.model_id import ModelId
from lm_eval_takeover.pair.ids import folder_digest, locate
from lm_eval_takeover.pair.vocabulary import SharedVocabulary, Vocabulary, describe, share

logger = logging.getLogger(__name__)


class Member:
    """One model of the pair. Its tokenizer and configuration are read at once, its weights when first used."""

    def __init__(
        self,
        role: str,
        name: str,
        *,
        device: str = "cpu",
        dtype: str | torch.dtype = "auto",
        trust_remote_code: bool = False,
    ) -> None:
        self.role = role
        self.path, self._revision = locate(name)
        if self.path.startswith(("/", ".", "~")) and not Path(self.path).is_dir():
            raise ArgumentError(f"{role}='{self.path}' cannot be loaded: there is no such folder")
        self.device = torch.device(device)
        self.dtype = dtype  # as asked for; `auto` is the checkpoint's own
        self.prepared: Any = None  # the forward pass that `reader` prepares at its first use
        self._options: dict[str, Any] = {"revision": self._revision, "trust_remote_code": trust_remote_code}
        self.config = self._load(AutoConfig)
        self.tokenizer = self._load(AutoTokenizer)
        self.vocabulary = Vocabulary.of(self.tokenizer, self.config.get_text_config().vocab_size)
        self.id = ModelId(*self._identity(name))

    def _load(self, kind: Any, **options: Any) -> Any:
        try:
            return kind.from_pretrained(self.path, **self._options, **options)
        except Exception as error:  # a checkpoint can be broken in as many ways as there are loaders
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            where = f" at revision '{self._revision}'" if self._revision else ""
            raise ArgumentError(
                f"{self.role}='{self.path}'{where} cannot be loaded: {reason} "
                f"(expected a local folder or a hub id, 'owner/name' or 'owner/name@revision')"
            ) from error

    def _identity(self, name: str) -> tuple[str, str | None]:
        if not Path(self.path).is_dir():
            # The hub's cache keeps the files of a commit in a folder of that name.
            file = try_to_load_from_cache(self.path, "config.json", revision=self._revision or "main")
            return self.path, Path(file).parent.name if isinstance(file, str) else self._revision
        demo = next((role for role, folder in DEMO.items() if Path(self.path).resolve() == folder.resolve()), None)
        return (f"demo-{demo}" if demo else Path(name).resolve().name), folder_digest(Path(self.path))

    @cached_property
    def model(self) -> Any:
        """The transformers model in eval mode, on its device; loaded at the first use."""
        safe = None if self._options["trust_remote_code"] else True
        try:
            model = self._load(AutoModelForCausalLM, dtype=self.dtype, use_safetensors=safe)
        except ArgumentError:
            if safe:
                self._refuse_pickles()
            raise
        if self.device.type == "cpu" and model.dtype == torch.bfloat16 and not computes_bfloat16():
            logger.warning(
                "%s='%s' is loaded in bfloat16, in which this CPU cannot compute: %sdtype=float32 reads several tokens at once "
                "in less time, in up to twice the memory",
                self.role,
                self.path,
                "guide_" if self.role == "guide" else "",
            )
        return model.to(self.device).eval()

    def _refuse_pickles(self) -> None:
        """Weights that only a pickle holds would run code of their author. Raises ArgumentError with the way to convert them."""
        if not Path(self.path).is_dir():
            names = _hub_files(self.path, self._revision)
        else:
            names = [file.name for file in Path(self.path).iterdir()]
        pickles = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt")) and "model" in name)
        if pickles and not any(name.endswith(".safetensors") for name in names):
            convert = (
                "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
                f"[one.from_pretrained('{self.path}').save_pretrained('converted') for one in (M, T)]"
            )
            raise ArgumentError(
                f"{self.role}='{self.path}' has its weights in a pickle only ('{pickles[0]}'), which can run any code; where you "
                f'trust it, convert it once with `python -c "{convert}"` and give {self.role}=converted, or pass '
                f"trust_remote_code=True"
            ) from None

    @cached_property
    def takes(self) -> frozenset[str]:
        """The arguments of this architecture's forward pass."""
        return frozenset(inspect.signature(self.model.forward).parameters)

    def logits(self, ids: Tensor, mask: Tensor, *, cache: Cache | None = None, keep: int = 1) -> Tensor:
        """One forward pass: float32 logits `[rows, keep, vocab]` of the last `keep` positions.

        ids `[rows, new]` are read after what the cache holds; mask `[rows, cached + new]` is 0 on left padding.
        """
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        options: dict[str, Any] = {"position_ids": positions, "logits_to_keep": keep}
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
            **{name: value for name, value in options.items() if name in self.takes},
        )
        logits: Tensor = output.logits[:, -keep:]
        return logits.float()

    def check(self, logits: Tensor, name: Callable[[int], str], real: Tensor | None = None) -> None:
        """Refuse logits `[rows, ..., vocab]` that are no distribution: NaN, +inf, or -inf everywhere.

        `real` says which positions count, all of them by default. Raises ModelOutputError with the name of the first bad row.
        """
        broken = ~logits.amax(-1).isfinite()
        if real is not None:
            broken &= real
        if broken.any():
            row = int(broken.nonzero()[0][0])
            raise ModelOutputError(
                f"{self.role} '{self.id.id}' returned logits that are no distribution (NaN or infinite) for {name(row)}; "
                f"try {'guide_' if self.role == 'guide' else ''}dtype=float32"
            )

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end this model's text, as transformers' `generate` and lm-eval's `hf` see them."""
        try:
            ids = GenerationConfig.from_pretrained(self.path, revision=self._revision).eos_token_id
        except OSError:
            ids = None
        if ids is None:
            ids = self.config.get_text_config().eos_token_id
        listed = ids if isinstance(ids, Iterable) else [ids]
        return frozenset(i for i in (*listed, self.tokenizer.eos_token_id) if i is not None)

    @property
    def max_length(self) -> int | None:
        """The longest context in tokens, where the configuration or the tokenizer says so."""
        config = self.config.get_text_config()
        names = ("n_positions", "max_position_embeddings", "n_ctx")
        lengths = [int(getattr(config, name)) for name in names if getattr(config, name, None)][:1]
        if not lengths and self.tokenizer.model_max_length < 10**9:  # transformers' "no limit" is 10^30
            lengths.append(int(self.tokenizer.model_max_length))
        return lengths[0] if lengths else None


def _hub_files(name: str, revision: str | None) -> list[str]:
    """The files of a repository; none where the hub cannot be asked: loading says what is wrong then."""
    try:
        return list(HfApi().list_repo_files(name, revision=revision))
    except (HfHubHTTPError, OSError, ValueError):
        return []


def computes_bfloat16() -> bool:
    """Whether this CPU has bfloat16 arithmetic, as far as torch can tell."""
    found = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return found.get("architecture") != "x86_64" or any(found.get(name) for name in ("avx512_bf16", "amx_bf16"))


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask `[rows, longest]`, the rows aligned at their ends."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def right_padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids `[rows, longest]`, the rows aligned at their starts."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)


class Pair:
    """The base and the guide, or one of them where a policy needs no other.

    Warns about renamed special tokens. Raises VocabularyError where the two do not share a vocabulary.
    """

    def __init__(self, base: Member | None, guide: Member | None) -> None:
        members = [member for member in (base, guide) if member is not None]
        if not members:
            raise ArgumentError("neither base nor guide is given")
        self.base, self.guide = base, guide
        self.members = members
        self.vocabulary: SharedVocabulary = share(members[0].vocabulary, members[-1].vocabulary)
        if self.vocabulary.renamed:
            logger.warning(
                "base and guide name %d special tokens differently, which is allowed: %s",
                len(self.vocabulary.renamed),
                describe(self.vocabulary.renamed),
            )

    @property
    def tokenizer(self) -> Any:
        """The guide's tokenizer, whose chat template the prompts go through; the base's where there is no guide."""
        return (self.guide or self.members[0]).tokenizer

    @property
    def max_length(self) -> int | None:
        """The longest context in tokens that every member of the pair can read."""
        return min((m.max_length for m in self.members if m.max_length), default=None)

    def writing(self, roles: Sequence[str], as_pair: bool = False) -> tuple[int, frozenset[int]]:
        """`(vocabulary size, ids that end a text)` where these models write; `as_pair` counts every member among them."""
        roles = [member.role for member in self.members] if as_pair else roles
        return self.vocab_size(roles), frozenset().union(*(self.member(role).eos_ids for role in roles))

    def vocab_size(self, roles: Sequence[str]) -> int:
        """How many token ids these models write: the shared ones, or all of a model that works alone."""
        return self.vocabulary.size if len(roles) > 1 else self.member(roles[0]).vocabulary.size

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids as lm-eval's `hf` makes them: the tokenizer's own special tokens, but no second BOS."""
        bos = getattr(self.tokenizer, "bos_token", None)
        if add_special_tokens is None and bos and text.startswith(bos):
            add_special_tokens = False
        options = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(text, **options))

    def chat_prompt(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True, enable_thinking: bool | None = None
    ) -> str:
        """Messages in the guide's chat template; without the system message where the template refuses one."""
        if not self.tokenizer.chat_template:
            raise ArgumentError(
                f"--apply_chat_template: the tokenizer of '{self.tokenizer.name_or_path}' has no chat template; run without it"
            )
        options: dict[str, Any] = {
            "tokenize": False,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
            **({} if enable_thinking is None else {"enable_thinking": enable_thinking}),
        }
        try:
            return str(self.tokenizer.apply_chat_template(messages, **options))
        except jinja2.TemplateError:
            logger.warning("the chat template refuses the messages as they are; leaving out the system message")
            rest = [message for message in messages if message["role"] != "system"]
            return str(self.tokenizer.apply_chat_template(rest, **options))

    def member(self, role: str) -> Member:
        member = self.base if role == "base" else self.guide
        if member is None:
            raise ArgumentError(f"{role} is not given, and this policy needs it: pass {role}=<hub id or local folder>")
        return member
