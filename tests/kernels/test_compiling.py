"""The kernels compile to machine code of GPUs, which needs none, in a process without the interpreter: this file is run there."""

import itertools
import os
import subprocess
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from lm_eval_takeover.kernels import attention, draws, layers, readings

TARGETS = ((80, "fp16"), (90, "bf16"), (100, "bf16"))  # A100; H100 and H200; B200
SMALL, LARGE = torch.zeros(64, dtype=torch.int64), torch.zeros(2**18, dtype=torch.bfloat16)
WIDTHS = dict.fromkeys(("tokens", "asked", "words", "keys", "positions", "slots"), "*i64") | {"counts": "*i32"}
WIDTHS |= dict.fromkeys(("logits", "host", "donor"), "*bf16") | {"out": "*fp32"}
WIDTHS |= dict.fromkeys(("queries", "key_cache", "value_cache", "mask", "attended"), "*bf16") | {"scale": "fp32"}
WIDTHS |= dict.fromkeys(("mixes", "tops", "totals"), "*fp32")
WIDTHS |= dict.fromkeys(("x", "made", "weight", "qkv", "cosines", "sines", "gate_up"), "*bf16") | {"eps": "fp32"}
WIDTHS |= dict.fromkeys(("rules", "parts", "shares", "masses"), "*fp64")
CONSTANTS = {
    "TURNS": 3, "TURN": 2, "LEVEL": 3, "SELECTS": True, "INDEXED": True, "DONOR": True, "TOKENS": True, "ROWS": 1,
    "ALIGNED": True, "TILE": draws.TILE, "SPLITS": 128, "BLOCK": 128, "M": 64, "D": 128, "T": 64, "S": 32, "NORMED": True,
}  # fmt: skip


def test_the_kernels_compile_once_for_whatever_number_of_rows():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["1"] * 39, done.stdout


def compile_all():
    """Prints the name of each kernel that is launched, and how many variants tensors of many sizes and places would compile."""
    functions = [
        one for module in (attention, draws, layers, readings) for one in vars(module).values() if isinstance(one, JITFunction)
    ]
    launched = (one for one in functions if one.do_not_specialize)
    for kernel, (version, half) in itertools.product(launched, TARGETS):
        target, names = GPUTarget("cuda", version, 32), kernel.arg_names
        constants = {name: CONSTANTS[name] for name in names if name.isupper()}
        signature = {
            name: "constexpr" if name in constants else WIDTHS.get(name, "i32").replace("bf16", half) for name in names
        }
        places = {(names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature, constexprs=places)
        made = triton.compile(source, target=target, options={"num_warps": 8, "enable_fp_fusion": False})
        assert made.asm["cubin"]
        # Triton reorders a mask of `histogram` and its values in different ways, so that others are counted.
        assert not [line for line in made.asm["ttgir"].splitlines() if "tt.histogram" in line and line.count("%") > 2]
        bind, variants = create_function_from_signature(kernel.signature, kernel.params, make_backend(target)), set()
        for size, place in itertools.product((1, 7, 16, 48), (0, 1)):
            logits = LARGE[place:].as_strided((size, 1, 97), (97 * size, 97, 1))
            small = {name: SMALL[place:] for name in names if WIDTHS.get(name, "i32")[0] == "*"}
            given = dict.fromkeys(names, size) | constants | small | dict.fromkeys(("logits", "host", "donor"), logits)
            given |= {"vocab": 97, "scale": 0.1, "eps": 0.1, "ALIGNED": draws.are_aligned(logits)}
            variants.add(str(bind(*(given[name] for name in names))[1]))
        print(kernel.__name__, len(variants))


if __name__ == "__main__":
    compile_all()
