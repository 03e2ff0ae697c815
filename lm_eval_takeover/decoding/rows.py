"""One sample while it is being written."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.decoding.stop_strings import StopStrings
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.method.sampling import Words, chances, request_digest, words


def choose_device(device: torch.device) -> torch.device:
    """Where logits of a model on this device are looked at: there, or on the host where it has no float64 (mps)."""
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


@dataclass(slots=True)
class Decision:
    """A takeover that the donor has not drawn yet: what follows from its score and, for a trace, what the host said there."""

    score: float
    window: Tensor  # `[window]` behind that token
    host: tuple[Tensor, int] | None = None  # its logits `[vocab]`, and what it drew


@dataclass(slots=True)
class Row:
    """A request, what was emitted for it, and its random numbers, which are made when it gets a slot."""

    index: int
    request: Request
    stop: StopStrings
    generation: Generation = field(default_factory=Generation)
    words: Words = field(default_factory=lambda: np.empty(0, np.uint64))
    chances: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    window: Tensor | None = None  # `[window]`, the last scores
    due: Decision | None = None  # a takeover that the donor has not drawn yet

    def begin(self, policy: Policy, seed: int, window: Tensor) -> None:
        """Random numbers and the window before the first token; a row that begins again keeps its own."""
        if self.window is None:
            digest, count = request_digest(self.request.prompt), self.request.max_new_tokens
            self.words = words(seed, digest, self.request.sample, count)
            if policy.uses_chance:
                self.chances = chances(seed, digest, self.request.sample, count)
            known = self.generation.scores[-len(window) :]  # of a text that goes on
            self.window = torch.cat([window[len(known) :], window.new_tensor(known)])

    @property
    def text(self) -> tuple[int, ...]:
        """Prompt and all that was emitted."""
        return (*self.request.prompt, *self.generation.tokens)

    @property
    def position(self) -> int:
        """Tokens emitted so far: `t`."""
        return len(self.generation.tokens)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - self.position

    @property
    def length(self) -> int:
        return len(self.request.prompt) + self.position

    @property
    def last(self) -> int:
        """The last token of the text, which no model has read yet."""
        return self.token(self.length - 1)

    def token(self, place: int) -> int:
        """The token at `place` of the whole text, prompt included."""
        prompt = self.request.prompt
        return prompt[place] if place < len(prompt) else self.generation.tokens[place - len(prompt)]

    def append(self, token: int, takeover: bool, score: float) -> None:
        self.generation.tokens.append(token)
        self.generation.taken_over.append(takeover)
        self.generation.scores.append(score)

    @property
    def name(self) -> str:
        """What errors call its next token."""
        return f"token {self.position} of {self.request.label}"
