"""What passes and draws cost, modelled: from the shapes of a model and a table of machines, with no clock, so that runs repeat.

`benchmarks/pass_costs.py` prints the line of this table for the machine that it runs on.
"""

from dataclasses import dataclass
from typing import Any

import torch

from lm_eval_takeover.forward.forward_pass import ForwardPass, StatePass
from lm_eval_takeover.forward.projection import computes_bfloat16


@dataclass(frozen=True, slots=True)
class Machine:
    """What one kind of device needs.

    launch: seconds a layer, whatever it reads. weights, cache: bytes a second, of weights and of cached keys and values.
    arithmetic: floating point operations a second. draw: seconds a draw, of any number of rows. entries: entries of the
    vocabulary a second that a draw looks at.
    """

    launch: float
    weights: float
    cache: float
    arithmetic: float
    draw: float
    entries: float


# CPUs are measured: two cores, with and without matrix instructions for the dtype. Only their `cache` is chosen. Passes of one
# token read 5 to 13 GB/s of keys and values on one core, 7 in the median. With 7e9 the schedule drafts for a guide at 32 short
# rows, which takes 1.1 times as long as no drafts. GPUs are modelled, in bfloat16: 7/8 of the published bandwidth, 6/10 of the
# arithmetic, 16 kernels of 2 microseconds a layer, a draw of two passes over float32 logits.
MACHINES = {
    "cpu": Machine(4e-5, 17e9, 4e10, 1.7e11, 2e-5, 2e8),
    "cpu with matrices": Machine(4e-5, 17e9, 4e10, 1.4e12, 2e-5, 2e8),
    "H200": Machine(3.3e-5, 4.2e12, 4.2e12, 6e14, 2e-5, 5e11),
    "H100": Machine(3.3e-5, 2.9e12, 2.9e12, 6e14, 2e-5, 3.6e11),
    "A100": Machine(3.3e-5, 1.75e12, 1.75e12, 1.9e14, 2e-5, 2.2e11),
}
_OTHER_GPU = "H100"


def find_machine(device: torch.device, dtype: torch.dtype) -> Machine:
    """The line of the table for a device: a GPU by its name."""
    if device.type == "cpu":
        return MACHINES["cpu with matrices" if dtype == torch.bfloat16 and computes_bfloat16() else "cpu"]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((machine for kind, machine in MACHINES.items() if kind in name), MACHINES[_OTHER_GPU])


@dataclass(frozen=True, slots=True)
class PassCost:
    """Modelled seconds of one model: `fixed` a pass (launches, weights read once), `per_token` of arithmetic, `per_column` of
    cached keys and values that one row reads; `draw` and `per_draw` of drawing one token of each row.

    `padded`: passes over several tokens are padded to few lengths (`round_up`).
    """

    fixed: float
    per_token: float
    per_column: float = 0.0
    draw: float = 0.0
    per_draw: float = 0.0
    padded: bool = True

    @classmethod
    def of(cls, forward: ForwardPass | StatePass) -> "PassCost":
        """From the shape and dtype of a model, and the kind of its device."""
        model = forward.model
        machine = find_machine(forward.member.device, model.dtype)
        return cls.of_model(model, machine, layers=forward.layers, padded=isinstance(forward, ForwardPass))

    @classmethod
    def of_model(cls, model: Any, machine: Machine, *, layers: int, padded: bool) -> "PassCost":
        """Of transformers' model, which may be without weights, in its dtype."""
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
        parameters = sum(p.numel() for p in model.parameters())
        if head is not None and head.weight is not embedding:
            parameters -= embedding.numel()  # of which a pass reads a row per token
        return cls.on(
            machine,
            parameters=parameters,
            layers=layers,
            itemsize=model.dtype.itemsize,
            column_bytes=count_column_bytes(model.config.get_text_config(), layers, model.dtype.itemsize),
            vocab=len(embedding),
            padded=padded,
        )

    @classmethod
    def on(
        cls,
        machine: Machine,
        *,
        parameters: int,
        layers: int,
        itemsize: int,
        column_bytes: int,
        vocab: int,
        padded: bool = True,
    ) -> "PassCost":
        """Of a model of so many parameters that a pass reads."""
        return cls(
            fixed=layers * machine.launch + parameters * itemsize / machine.weights,
            per_token=2 * parameters / machine.arithmetic,
            per_column=column_bytes / machine.cache,
            draw=machine.draw,
            per_draw=vocab / machine.entries,
            padded=padded,
        )

    def seconds(self, tokens: float, columns: float = 0.0) -> float:
        """Of a pass over so many tokens that reads so many cached columns, of all rows together."""
        return self.fixed + self.per_token * tokens + self.per_column * columns

    def draft_seconds(self, rows: float, columns: float = 0.0) -> float:
        """Of one drafted token of each of these rows: a pass and a draw."""
        return self.seconds(rows, columns) + self.draw + self.per_draw * rows


def count_column_bytes(config: Any, layers: int, itemsize: int) -> int:
    """Bytes of keys and values that one token of one row takes."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * layers * int(getattr(config, "num_key_value_heads", None) or heads) * int(size) * itemsize
