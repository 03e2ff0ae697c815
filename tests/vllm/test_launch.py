"""What cannot run is said in one line before any engine starts."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import check_next_vllm
import pytest
import torch
from helpers.one_line import one_line
from helpers.pairs import POLICIES, edit, save_random_model
from transformers import AutoConfig

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.pair.policy_choice import load_policy
from lm_eval_takeover.serve import server
from lm_eval_takeover.vllm.block_rule import describe_costs
from lm_eval_takeover.vllm.launch import RUNNER, check_version, list_engine_arguments, plan_drafts, start_engine
from lm_eval_takeover.vllm.settings import EngineSettings

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's own


def _plan(arguments):
    parsed = ModelArguments.parse({"backend": "vllm", "tau": 1.0, "policy": "disagreement"} | arguments)
    loaded = load_pair(parsed)
    policy = load_policy(parsed, loaded)[0]
    return list_engine_arguments(parsed, loaded, policy, plan_drafts(parsed, loaded, policy))


@pytest.fixture
def plan(wide_folders):
    return lambda **arguments: _plan(wide_folders | arguments)


@pytest.mark.parametrize("cpu", [True, False])
def test_a_cpu_has_model_runner_v1_which_does_not_draft_unless_a_user_asks_for_v2(plan, monkeypatch, caplog, cpu):
    monkeypatch.delenv(RUNNER, raising=False)
    monkeypatch.setattr("vllm.platforms.current_platform.is_cpu", lambda: cpu)
    assert ("speculative_config" in plan(block_size=4)) is not cpu
    assert os.environ[RUNNER] == ("0" if cpu else "1")
    told = "block_size=4: fused, since drafts need vLLM's model runner V2, which GPUs have; this engine has V1"
    assert (told in caplog.text) is cpu
    monkeypatch.setenv(RUNNER, "1" if cpu else "0")
    assert ("speculative_config" in plan(block_size=4)) is cpu


def test_policy_tau_and_seed_are_no_part_of_the_compile_key(plan):
    from vllm.engine.arg_utils import EngineArgs

    def hash_of(**arguments):
        config = EngineArgs(**plan(block_size=1, **arguments)).create_engine_config()
        assert EngineSettings.of(config.model_config).seed == arguments.get("seed", 0)
        assert EngineSettings.of(config.model_config).load_policy().name == arguments.get("policy", "disagreement")
        return config.compute_hash()

    others = [{"tau": 1.6}, {"seed": 1}, {"policy": "random", "tau": None, "rate": 0.1}]
    assert {hash_of(**other) for other in others} == {hash_of()}
    assert hash_of(max_model_len=64) != hash_of()
    assert plan(policy="guide", tau=None)["hf_overrides"]["takeover"]["base"] is None  # one model alone is not fused


def test_equal_configurations_share_no_compiled_code(plan, wide_folders):
    from vllm.compilation.caching import aot_compile_hash_factors
    from vllm.engine.arg_utils import EngineArgs

    from lm_eval_takeover.vllm.pair_model import read_base

    engine = EngineArgs(**plan(base=wide_folders["guide"], block_size=1)).create_engine_config()
    settings = EngineSettings.of(engine.model_config)
    guide, base = engine.model_config.hf_config, read_base(settings)
    keys = [aot_compile_hash_factors(engine.with_hf_config(one, settings.guide_architectures)) for one in (guide, guide, base)]
    assert keys[0] == keys[1] != keys[2]


def test_dtype_auto_is_the_checkpoints_own(plan):
    assert plan()["dtype"] == "float32"  # vLLM's own `auto` is bfloat16 then
    assert plan(dtype="bfloat16")["dtype"] == "bfloat16"


def test_auto_is_a_table_of_lengths_which_vllm_reads(plan, monkeypatch, caplog):
    monkeypatch.setenv(RUNNER, "1")
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    caplog.set_level("INFO")
    drafts = plan(block_size="auto", max_num_seqs=16)["speculative_config"]
    longest, ranges = drafts["num_speculative_tokens"], drafts["num_speculative_tokens_per_batch_size"]
    lengths = build_dynamic_sd_schedule_lookup(ranges, 16, longest)[1:]
    assert lengths[0] == longest > 1 and lengths == sorted(lengths, reverse=True)
    assert "block_size=auto: tokens of a draft by the number of requests" in caplog.text
    assert len({*lengths}) <= 3
    assert plan(block_size=4, kv_cache_dtype="fp8")["speculative_config"]["kv_cache_dtype"] == "fp8"
    alike = plan(block_size="auto", max_num_seqs=16, data_parallel_size=2)["speculative_config"]
    assert alike["num_speculative_tokens_per_batch_size"] == [(1, 16, lengths[-1])]
    assert "speculative_config" not in plan(block_size="auto", policy="random", rate=0.9, tau=None)


@pytest.mark.parametrize("ranges", [[(1, 9, 12), (10, 99, 10), (100, 256, 7)], [(1, 9, 12), (10, 99, 9), (100, 1024, 0)]])
def test_three_lengths_of_drafts_have_few_graphs(plan, monkeypatch, ranges):
    """By vLLM's own sizes. A fixed length of 8 has 44 full graphs of the target, the best length of each number 253 and 387."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.gpu import cudagraph_utils

    longest, most = ranges[0][2], ranges[-1][1]
    given = {"num_speculative_tokens_per_batch_size": ranges, "num_speculative_tokens": longest}
    options = plan(block_size=1, max_num_seqs=most, max_num_batched_tokens=8192)
    config = EngineArgs(**options, enforce_eager=False).create_engine_config()
    config.speculative_config = SimpleNamespace(**given, uses_dynamic_speculative_decoding=lambda: True)
    compilation, mode = config.compilation_config, CUDAGraphMode.FULL_AND_PIECEWISE
    compilation.cudagraph_mode, compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = mode, None, None
    config.model_config.enforce_eager = False
    monkeypatch.setattr(type(config), "num_speculative_tokens", longest)
    monkeypatch.setattr(type(config), "uniform_decode_query_len", longest + 1)
    monkeypatch.setattr(cudagraph_utils, "get_pp_group", Mock())
    monkeypatch.setattr(cudagraph_utils, "current_platform", Mock())
    config._set_cudagraph_sizes()
    graphs = cudagraph_utils.CudaGraphManager(config, torch.device("cpu"), mode, longest + 1)._capture_descs
    assert len(graphs[CUDAGraphMode.FULL]) < 140 and len(graphs[CUDAGraphMode.PIECEWISE]) < 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_paralel_size": 2}, "'tensor_paralel_size'; did you mean 'tensor_parallel_size'"),
        ({"max_model_len": 100_000}, "max_model_len=100000 is more than the"),
        ({"max_model_len": 64, "max_length": 64}, "say the same; give one of them"),
        ({"guide_dtype": "bfloat16", "dtype": "float32"}, "guide_dtype=bfloat16 beside dtype=float32: backend=vllm"),
        ({"speculative_config": "x"}, "speculative_config=x is set by this package; give base, guide, block_size or plugins"),
        ({"pipeline_parallel_size": 2}, "give tensor_parallel_size=2 instead"),
        ({"block_size": 4, "policy": "base", "tau": None}, "policy=base has no base to draft and a guide to verify"),
    ],
)
def test_wrong_arguments_are_one_line(plan, arguments, message):
    with one_line(ArgumentError, message):
        plan(**arguments)


IMAGES = "which reads more than text: backend=vllm has models of text alone; run it with backend=hf"
STATES = "whose LinearAttentionLayer keeps a state: backend=vllm has attention alone; run it with backend=hf"


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (None, {"architectures": ["OddForCausalLM"]}, "'new' is a OddForCausalLM, which vLLM does not know; run it"),
        (None, {"dtype": "float16"}, "dtype=auto: the checkpoints have different dtypes (base float32, guide float16)"),
        ("gemma4", {"architectures": ["Gemma4ForConditionalGeneration"]}, IMAGES),
        ("mistral3", {"architectures": ["Mistral3ForConditionalGeneration"]}, IMAGES),
        ("qwen3_5", {"architectures": ["Qwen3_5ForConditionalGeneration"]}, IMAGES),
        ("qwen3_5_text", {"architectures": ["Qwen3_5ForCausalLM"]}, STATES),
    ],
)
def test_a_checkpoint_that_it_cannot_run_is_named_before_any_work(plan, wide_folders, tmp_path, kind, changed, message):
    folder = shutil.copytree(wide_folders["guide"], tmp_path / "new", ignore=shutil.ignore_patterns("*.safetensors"))
    if kind is not None:
        sizes = {"vocab_size": 512}
        AutoConfig.for_model(kind, **(sizes if kind.endswith("text") else {"text_config": sizes})).save_pretrained(folder)
    edit(folder / "config.json", lambda config: config.update(changed))
    with one_line(ArgumentError, message):
        plan(guide=str(folder))


@pytest.mark.parametrize("quantized", ["base", "guide"])
def test_each_model_has_the_quantization_of_its_own_checkpoint(plan, wide_folders, tmp_path, monkeypatch, quantized):
    from vllm.engine.arg_utils import EngineArgs

    from lm_eval_takeover.vllm.pair_model import _configure_base

    folder = shutil.copytree(wide_folders[quantized], tmp_path / "quantized")
    how = {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["model.x"]}
    edit(folder / "config.json", lambda config: config.update(quantization_config=how))
    pair = {quantized: str(folder), "dtype": "bfloat16"}
    engine = EngineArgs(**plan(**pair, block_size=1)).create_engine_config()
    settings = EngineSettings.of(engine.model_config)
    base = AutoConfig.from_pretrained(settings.base)
    own = _configure_base(engine, settings, base).with_hf_config(base).quant_config
    ignored = [getattr(one, "ignored_layers", None) for one in (own, engine.quant_config)]
    assert ignored == ([["base.model.x"], None] if quantized == "base" else [None, ["model.x"]])
    monkeypatch.setenv(RUNNER, "1")
    assert ("speculative_config" in plan(**pair, block_size=4)) == (quantized == "guide")


def test_heads_that_vllm_has_not_on_a_cpu_are_named(plan, tmp_path):
    odd = save_random_model(tmp_path / "odd", vocab_size=512, seed=1, kind="llama", head_dim=48)
    with pytest.raises(ArgumentError, match=r"base='odd' has heads of 48, and vLLM computes with 32, 64"):
        plan(base=str(odd))


def test_too_little_memory_is_one_line_that_says_what_to_set(tight):
    values = tight | {"num_gpu_blocks_override": 3}
    message = r"guide='guide': To serve .* maximum model length is \d+; give a smaller max_model_len=… or another gpu"
    with pytest.raises(ArgumentError, match=message) as raised:
        start_engine(_plan(values), load_pair(ModelArguments.parse(values)))
    assert "\n" not in str(raised.value) and "Try" not in str(raised.value)


def test_a_server_that_cannot_go_on_ends_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr("vllm.entrypoints.launchers.api_server.entry.main", lambda: 1 / 0)
    assert server.main() == 2
    assert capsys.readouterr().err == "error: vLLM's server cannot go on: division by zero\n"
    monkeypatch.setattr("vllm.entrypoints.launchers.api_server.entry.main", Mock(side_effect=KeyboardInterrupt))
    assert server.main() == 130 and capsys.readouterr().err == "stopped\n"


def test_the_process_that_starts_the_engine_opens_no_gpu(monkeypatch):
    """This machine's torch raises where one is opened."""
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        torch.cuda.get_device_name("cuda")
    for device, text in (("cuda", "torch finds no GPU"), ("gpu", "cannot use it here; give cpu or cuda:0")):
        with pytest.raises(ArgumentError, match=f"device='{device}': .*{text}"):
            load_pair(ModelArguments.parse({"backend": "vllm", "device": device}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("vllm.platforms.current_platform.get_device_name", lambda: "NVIDIA H200", raising=False)
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    arguments = ModelArguments.parse({"backend": "vllm"})
    pair = load_pair(arguments)
    assert [member.device.type for member in pair.members] == ["cuda", "cuda"]
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    drafter = describe_costs(arguments, pair, POLICIES["disagreement"]).drafter
    monkeypatch.setattr("vllm.platforms.current_platform.get_device_name", lambda: "NVIDIA A100", raising=False)
    assert drafter.fixed < describe_costs(arguments, pair, POLICIES["disagreement"]).drafter.fixed


def test_a_version_that_was_only_read_is_named_and_another_one_is_refused(monkeypatch, caplog):
    import vllm

    check_version()
    assert not caplog.records
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    check_version()
    assert caplog.messages == ["vLLM 0.33.1: the tests ran with 0.32. Of this version only the names were compared."]
    monkeypatch.setattr(vllm, "__version__", "0.34.0")
    with pytest.raises(ArgumentError, match=r"vLLM 0\.34\.0 is installed, expected 0\.32 or 0\.33: pip install"):
        check_version()


def test_what_is_used_of_vllm_is_there_and_what_another_version_lacks_is_named(tmp_path, capsys):
    import vllm

    assert check_next_vllm.report(Path(vllm.__file__).parents[1]) == 0
    assert check_next_vllm.report(tmp_path) == 2
    (tmp_path / "vllm").mkdir()
    other = "__version__ = '1'\nclass LLMEngine:\n    def add_request(self, prompt): ..."
    (tmp_path / "vllm" / "__init__.py").write_text(other)
    assert check_next_vllm.report(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "vllm.LLMEngine has no attribute 'step'" in printed and "vllm.LLMEngine.add_request has no parameter" in printed
    assert "vllm.config.ModelConfig is missing" in printed


def test_vllm_reports_no_use_unless_the_user_has_decided(monkeypatch):
    for before, after in ((None, "1"), ("0", "0")):
        monkeypatch.delenv("VLLM_NO_USAGE_STATS")
        if before is not None:
            monkeypatch.setenv("VLLM_NO_USAGE_STATS", before)
        check_version()
        assert os.environ["VLLM_NO_USAGE_STATS"] == after
