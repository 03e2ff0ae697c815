"""The pair: a base and a guide that share a vocabulary, and how model arguments name and load it."""

import logging
import os
from collections.abc import Sequence
from functools import cached_property
from os.path import commonprefix
from typing import Any

import torch

from lm_eval_takeover import stopping
from lm_eval_takeover.arguments import KINDS, ModelArguments
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, VocabularyError, first_line, nearest
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.vocabulary import SharedVocabulary, describe, share

logger = logging.getLogger(__name__)

TEMPLATE_SECONDS = 20  # in which a chat template must have written a prompt
COMPARED = 8  # first texts that both tokenizers encode
DEFAULT_MAX_LENGTH = 2048  # tokens; as lm-eval's hf, where no configuration says otherwise


class Pair:
    """The base and the guide, or one alone. Warns of renamed special tokens. Raises VocabularyError for two vocabularies."""

    def __init__(self, base: Member | None, guide: Member | None) -> None:
        self.base, self.guide = base, guide
        self.members = [member for member in (base, guide) if member is not None]
        if not self.members:
            raise ArgumentError("neither base nor guide is given")
        self.vocabulary: SharedVocabulary = share(self.members[0].vocabulary, self.members[-1].vocabulary)
        self.template: str | None = None  # of several chat templates, by name
        self._to_compare = COMPARED * (len(self.members) - 1)
        if renamed := self.vocabulary.renamed:
            logger.warning("base and guide name %d added tokens differently: %s", len(renamed), describe(renamed))

    @property
    def tokenizer(self) -> Any:
        """The guide's tokenizer, whose chat template the prompts go through; the base's where there is no guide."""
        return self.members[-1].tokenizer

    @property
    def max_length(self) -> int | None:
        """The longest context in tokens that every member of the pair can read."""
        return min((m.max_length for m in self.members if m.max_length), default=None)

    @property
    def vocab_size(self) -> int:
        """How many token ids are written, whichever model writes: the shared ones, or all of a model that is named alone."""
        return self.vocabulary.size

    @property
    def eos_ids(self) -> frozenset[int]:
        """The ids that end a text, whichever model writes: those of every member."""
        return frozenset().union(*(member.eos_ids for member in self.members))

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids by the tokenizer that encodes for both models: see `Member.encode`."""
        ids = self.members[-1].encode(text, add_special_tokens)
        if self._to_compare and (own := self.members[0].encode(text, add_special_tokens)) != ids:
            self._to_compare = 0  # said once, of the first texts
            logger.warning("%s", self._describe_encodings(own, ids))
        self._to_compare = max(self._to_compare - 1, 0)
        return ids

    def _describe_encodings(self, own: list[int], ids: list[int]) -> str:
        """What differs between the ids of the base's and the guide's tokenizer, and what it means."""
        base, guide = (member.tokenizer for member in self.members)
        worse = "the guide's is used for both models, and the base may write worse"
        if own[1:] == ids:
            bos = base.convert_ids_to_tokens(own[0])
            way_out = "guide_add_bos_token=True adds it" if guide.bos_token == bos else "mend the guide's tokenizer"
            return f"the base's tokenizer begins texts with '{bos}', and the guide's does not: {worse} without it; {way_out}"
        if ids[1:] == own:
            begins = f"the guide's tokenizer begins texts with '{guide.convert_ids_to_tokens(ids[0])}', and the base's does not"
            return f"{begins}: {worse} behind it; guide_add_bos_token=False leaves it out"
        place = len(commonprefix([own, ids]))  # noqa: RUF071 - of ids, not paths
        first = " and ".join(repr(by.decode(some[place : place + 3])) for by, some in ((base, own), (guide, ids)))
        differ = f"of a prompt, the base's tokenizer makes {len(own)} tokens and the guide's {len(ids)}, others from {first} on"
        return f"{differ}: {worse} behind tokens that it was not trained on; choose a guide with the base's tokenizer"

    def check_ids(self, ids: Sequence[int], label: str) -> None:
        """Raises VocabularyError for a token that a model cannot read; `label` names the text."""
        if max(ids) >= self.vocab_size:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise VocabularyError(
                f"{label} holds token {max(ids)} ({token!r}), which lies outside the {self.vocab_size} tokens that "
                f"{' and '.join(member.role for member in self.members)} can read; run without --apply_chat_template or choose "
                f"a base with it"
            )

    def chat_prompt(
        self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True, enable_thinking: bool | None = None
    ) -> str:
        """Messages in the guide's chat template; without the system message where the template refuses one."""
        if not self.tokenizer.chat_template:
            name = self.tokenizer.name_or_path
            raise ArgumentError(f"--apply_chat_template: the tokenizer of '{name}' has no chat template; leave it out")
        templates = self.tokenizer.chat_template
        named = templates if isinstance(templates, dict) else {}
        if self.template is not None and self.template not in named:
            which = nearest(self.template, named) if named else "it has one template without a name; give the option alone"
            problem = f"is no template of the tokenizer of '{self.tokenizer.name_or_path}'"
            raise ArgumentError(f"--apply_chat_template '{self.template}' {problem}; {which}")
        options: dict[str, Any] = {
            "chat_template": named.get(self.template),
            "tokenize": False,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
            **({} if enable_thinking is None else {"enable_thinking": enable_thinking}),
        }
        rest = [message for message in messages if message["role"] != "system"]
        for tried in (messages, rest):
            try:
                with stopping.time_limit(TEMPLATE_SECONDS):
                    return str(self.tokenizer.apply_chat_template(tried, **options))
            except Exception as error:  # a template is code of its author
                if tried is rest or rest == messages or isinstance(error, TimeoutError):
                    told = f"--apply_chat_template: the chat template of '{self.tokenizer.name_or_path}'"
                    problem = f"{told} cannot be used: {first_line(error)}"
                    raise ArgumentError(f"{problem}; leave it out, or mend the template") from error
                logger.warning("the chat template refuses the messages as they are; leaving out the system message")
        raise AssertionError("one of the two was returned or raised")

    def is_chat_prompt(self, text: str) -> bool | None:
        """Whether a prompt went through the chat template, by what that adds to a question; None where it adds nothing."""
        if not self.tokenizer.chat_template:
            return False
        return self._chat_mark in text if self._chat_mark else None

    @cached_property
    def _chat_mark(self) -> str:
        """The text that the chat template adds behind a question in every thinking mode, else before one."""
        probe = "2 + 2 = ?"
        messages = [{"role": "user", "content": probe}]
        texts = [self.chat_prompt(messages, enable_thinking=thinking) for thinking in (None, False, True)]
        before, after = ([text.rpartition(probe)[side] for text in texts] for side in (0, 2))
        return commonprefix(after).strip() or commonprefix(before).strip()  # noqa: RUF071 - of texts, not paths

    def member(self, role: str) -> Member:
        """The base or the guide. Raises ArgumentError where it was not given."""
        member = self.base if role == "base" else self.guide
        if member is None:
            raise ArgumentError(f"{role} is not given, and this policy needs it: pass {role}=<hub id or local folder>")
        return member


# From model arguments


def load_pair(arguments: ModelArguments, shared: dict[str, Pair] | None = None) -> Pair:
    """The pair of `_load_pair`. shared: of several runs that differ in their method alone; what is loaded alike is one pair."""
    if shared is None:
        return _load_pair(arguments)
    key = repr([getattr(arguments, name) for name, kind in KINDS.items() if kind.loads])
    return shared.get(key) or shared.setdefault(key, _load_pair(arguments))


def _load_pair(arguments: ModelArguments) -> Pair:
    """The models that the arguments name, the demo pair if none. Reads tokenizers and configurations; weights at first use."""
    names = {"base": arguments.base, "guide": arguments.guide}
    if names == {"base": None, "guide": None}:
        logger.warning("no base= and guide= are given: this is the bundled demo pair, which knows its own tasks only")
        names = {role: str(path) for role, path in DEMO.items()}
    missing = [role for role in policies.get(arguments.policy).models if names[role] is None]
    if missing:
        raise ArgumentError(
            f"{missing[0]} is missing: policy={arguments.policy} asks it; give {missing[0]}=<hub id or local folder>, "
            f"or policy=base or policy=guide for one model alone"
        )
    devices = resolve_devices(arguments)
    by_role = {role: arguments.for_role(role) for role in names}
    members = {
        role: Member(role, name, device=devices[role], dtype=parse_dtype(role, by_role[role].dtype), given=by_role[role])
        for role, name in names.items()
        if name is not None
    }
    pair = Pair(members.get("base"), members.get("guide"))
    if arguments.max_length and pair.max_length and arguments.max_length > pair.max_length:
        logger.warning(
            "max_length=%d is more than the %d tokens that the models are made for; text beyond that may be noise",
            arguments.max_length, pair.max_length,
        )  # fmt: skip
    return pair


def resolve_devices(arguments: ModelArguments) -> dict[str, str]:
    """The device of each model. Raises ArgumentError for one that is not there."""
    if not (opens := arguments.backend != "vllm"):  # a GPU that allows a single process would be lost to the engine
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks the driver alone
    device = _resolve_device("device", arguments.device, opens)
    return {"base": device, "guide": _resolve_device("guide_device", arguments.guide_device or device, opens)}


def _resolve_device(argument: str, device: str | None, opens: bool) -> str:
    """The device to load onto; None is the GPU where there is one. Raises ArgumentError for one that is not there."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"{argument}='{device}': torch finds no GPU; give cpu, or install a torch with CUDA")
    try:
        _ = torch.empty(0, device=device) if opens else torch.device(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ArgumentError(
            f"{argument}='{device}': torch {torch.__version__} cannot use it here; give cpu or cuda:0"
        ) from error
    return str(device)


def parse_dtype(role: str, dtype: str) -> str | torch.dtype:
    """The dtype of this name, or `auto`. Raises ArgumentError for a name that torch does not know."""
    if dtype == "auto":
        return dtype
    parsed = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(parsed, torch.dtype):
        argument = "guide_dtype" if role == "guide" else "dtype"
        raise ArgumentError(f"{argument}='{dtype}' is not known; expected auto, float32, bfloat16 or float16")
    return parsed
