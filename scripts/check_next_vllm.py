"""Says what of this package would break under another version of vLLM: its source is read, nothing of it is installed or run.

    python scripts/check_next_vllm.py 0.34.0          this version: its wheel is downloaded, some hundred megabytes
    python scripts/check_next_vllm.py FOLDER          the folder that holds vLLM's folder `vllm`: a checkout, or an unpacked wheel

One line for each function, class, parameter or attribute that is used and is not as expected. Exit status 1 where there is one.
Names and parameters are compared, not what they do: run `make test-vllm` under a version before it is called tested.

A hook is `(module, path, names)`, the names in one text. The path leads to

- a function, whose parameters must be these, in this order; before `...` in any order, and there may be others,
- a class, which must have attributes and methods of these names, its own or inherited,
- nowhere, where it is empty: the module's code must mention the names, or be a package of modules of these names.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).parent.parent
Hook = tuple[str, str, str]
OTHERS = "..."

_Found = tuple[str, ast.AST]  # the module where something stands, and what it is
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# Names of vLLM beyond its public interfaces (`LLM`, `EngineArgs`, `SamplingParams`, the registry of models, both
# `LogitsProcessor`s), by module, as `Hook` says. Used by every engine:
HOOKS: tuple[Hook, ...] = (
    ("vllm", "", "__version__"),
    ("vllm", "LLMEngine", "engine_core step vllm_config"),
    ("vllm", "LLMEngine.abort_request", "request_ids ..."),
    ("vllm", "LLMEngine.add_request", "request_id prompt params ..."),
    ("vllm.compilation.backends", "set_model_tag", "tag ..."),
    ("vllm.config", "ModelConfig", "dtype hf_config hf_overrides max_model_len model model_arch_config quantization revision"),
    ("vllm.config", "SchedulerConfig", "max_num_seqs"),
    ("vllm.config", "CompilationConfig", "static_forward_context"),
    ("vllm.config", "VllmConfig", "compilation_config load_config model_config parallel_config quant_config scheduler_config"),
    ("vllm.config", "ModelConfig._verify_quantization", ""),
    ("vllm.config", "ModelConfig.get_model_arch_config", ""),
    ("vllm.config", "VllmConfig.get_quantization_config", "model_config load_config ..."),
    ("vllm.envs", "", "environment_variables VLLM_USE_V2_MODEL_RUNNER"),
    ("vllm.model_executor.layers.quantization.base_config", "QuantizationConfig.apply_vllm_mapper", "hf_to_vllm_mapper"),
    ("vllm.model_executor.models.utils", "WeightsMapper", "orig_to_new_prefix"),
    ("vllm.model_executor.model_loader.default_loader", "", "secondary_weights"),
    ("vllm.model_executor.model_loader.default_loader", "DefaultModelLoader.Source",
        "fall_back_to_pt model_or_path prefix revision"),
    ("vllm.model_executor.models.utils", "AutoWeightsLoader.load_weights", "weights ..."),
    ("vllm.model_executor.models.utils", "init_vllm_registered_model", "vllm_config prefix hf_config architectures ..."),
    ("vllm.model_executor.models.utils", "maybe_prefix", "prefix name"),
    ("vllm.platforms.interface", "Platform", "is_cpu"),
    ("vllm.plugins", "", "vllm.general_plugins"),
    ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackend", "get_supported_head_sizes"),
    ("vllm.v1.engine.core_client", "EngineCoreClient", "shutdown"),
)  # fmt: skip
SERVER_HOOKS: tuple[Hook, ...] = (
    ("vllm.engine.protocol", "EngineClient", "errored model_config"),
    ("vllm.entrypoints.launchers.api_server.entry", "main", ""),
    ("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware.__init__", "app tokens"),
    ("vllm.entrypoints.serve.middleware.authenticate", "AuthenticationMiddleware.verify_token", "headers"),
    ("vllm.v1.engine.async_llm", "AsyncLLM", "engine_core tokenizer"),
    ("vllm.v1.engine.core_client", "AsyncMPClient.call_utility_all_async", "method"),
)  # fmt: skip
_SPECULATOR = "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator"
_GRAPHS = "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils"
RUNNER_V2_HOOKS: tuple[Hook, ...] = (
    ("vllm.v1.core.sched.output", "NewRequestData", "prompt_token_ids req_id sampling_params"),
    ("vllm.v1.worker.gpu.model_states", "", "get_model_state_cls"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState", "device model"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.__init__", "vllm_config ..."),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.add_request", "req_index new_req_data"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.custom_sampler", "sampler"),
    ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState.remove_request", "req_id"),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.sample", "logits expanded_idx_mapping idx_mapping idx_mapping_np pos ..."),
)  # fmt: skip
DRAFT_HOOKS: tuple[Hook, ...] = (
    ("vllm.config", "ParallelConfig", "data_parallel_size"),
    ("vllm.config.speculative", "SpeculativeConfig", "draft_tensor_parallel_size kv_cache_dtype method model "
        "num_speculative_tokens num_speculative_tokens_per_batch_size revision"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker.init_device", ""),
    ("vllm.v1.worker.gpu_worker", "Worker.init_device", ""),
    ("vllm.config.compilation", "CUDAGraphMode", "FULL FULL_DECODE_ONLY decode_mode"),
    ("vllm.v1.attention.backend", "AttentionMetadataBuilder", "reorder_batch_threshold"),
    ("vllm.v1.worker.gpu.block_table", "BlockTables", "input_block_tables"),
    ("vllm.v1.worker.gpu.block_table", "BlockTables.compute_slot_mappings",
        "idx_mapping query_start_loc positions num_tokens_padded ..."),
    (_GRAPHS, "SpeculatorBatchDescriptor", "num_reqs num_speculative_tokens uniform_token_count"),
    (_GRAPHS, "SpeculatorCudaGraphManager", "graphs"),
    (_GRAPHS, "SpeculatorCudaGraphManager.__init__", "vllm_config device cudagraph_mode decode_query_len ..."),
    (_GRAPHS, "SpeculatorCudaGraphManager.capture",
        "forward_fn model_state input_buffers block_tables attn_groups kv_cache_config progress_bar_desc "
        "specialize_spec_tokens"),
    (_GRAPHS, "SpeculatorCudaGraphManager.run_fullgraph", "desc"),
    ("vllm.v1.worker.gpu.input_batch", "InputBatch",
        "cu_num_logits idx_mapping idx_mapping_np input_ids logits_indices num_computed_tokens_np num_draft_tokens_per_req "
        "num_scheduled_tokens positions prefill_len_np"),
    ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "speculator"),
    ("vllm.v1.worker.gpu.input_batch", "InputBuffers", "input_ids positions query_start_loc seq_lens"),
    ("vllm.v1.worker.gpu.sample.output", "SamplerOutput",
        "logprobs_tensors num_nans num_rejected num_sampled sampled_token_ids"),
    ("vllm.v1.worker.gpu.sample.sampler", "Sampler.__call__", "logits input_batch"),
    (_SPECULATOR, "StandaloneARSpeculator",
        "arange_gpu attn_groups block_tables current_draft_step draft_tokens expanded_input_ids expanded_positions idx_mapping "
        "input_buffers kv_cache_config last_token_indices max_model_len max_num_reqs model num_speculative_steps "
        "speculative_config supports_decode_metadata_update vllm_config"),
    (_SPECULATOR, "StandaloneARSpeculator._multi_step_decode",
        "input_batch num_rejected num_reqs skip_attn num_tokens_across_dp"),
    (_SPECULATOR, "StandaloneARSpeculator._prefill",
        "input_batch num_rejected last_sampled num_reqs skip_attn num_tokens_across_dp"),
    (_SPECULATOR, "StandaloneARSpeculator._run_model", "input_ids positions attn_metadata slot_mappings num_tokens_across_dp"),
    (_SPECULATOR, "StandaloneARSpeculator._update_draft_decode_metadata", "attn_metadata num_reqs"),
    (_SPECULATOR, "StandaloneARSpeculator.capture", ""),
    (_SPECULATOR, "StandaloneARSpeculator.init_cudagraph_manager", "cudagraph_mode"),
    (_SPECULATOR, "StandaloneARSpeculator.propose",
        "input_batch num_rejected last_sampled num_speculative_tokens dummy_run skip_attn_for_dummy_run ..."),
    (_SPECULATOR, "StandaloneARSpeculator.sample_draft",
        "hidden_states sample_src_positions idx_mapping temperature seeds draft_step ..."),
    (_SPECULATOR, "StandaloneARSpeculator.set_attn", "model_state ..."),
    (_SPECULATOR, "prepare_prefill_inputs",
        "input_buffers input_batch last_sampled num_rejected expanded_input_ids expanded_positions last_token_indices "
        "max_num_reqs max_model_len"),
    ("vllm.v1.worker.utils", "AttentionGroup", "get_metadata_builder kv_cache_group_id map_to_kernel_block_table"),
)  # fmt: skip
EVERY_HOOK = (*HOOKS, *SERVER_HOOKS, *RUNNER_V2_HOOKS, *DRAFT_HOOKS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="VERSION|FOLDER")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.source)
        if not folder.is_dir():
            folder = download(options.source, Path(scratch))
        return report(folder)


def download(version: str, folder: Path) -> Path:
    """The Python files of a version's wheel."""
    words = ["download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    if subprocess.run([sys.executable, "-m", "pip", *words, f"vllm=={version}"]).returncode:
        sys.exit(f"{version} is no folder, and pip finds no wheel of such a version of vLLM")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    wheel.unlink()
    return folder


def list_imports(package: str, folder: Path) -> tuple[Hook, ...]:
    """What the Python files of a folder import from a package."""
    statements = (
        node
        for file in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package
    )
    names = {(str(node.module), alias.name) for node in statements for alias in node.names}
    return tuple((module, "", name) for module, name in sorted(names))


def report(folder: Path) -> int:
    if not (folder / "vllm" / "__init__.py").is_file():
        print(f"{folder} has no folder 'vllm' with Python files")
        return 2
    hooks = EVERY_HOOK + list_imports("vllm", ROOT / "lm_eval_takeover")
    faults = find_faults(folder, hooks)
    for fault in faults:
        print(fault)
    counts = [(module, max(len([name for name in names.split() if name != OTHERS]), 1)) for module, _, names in EVERY_HOOK]
    private = sum(count for module, count in counts if module.startswith("vllm.v1"))
    used = sum(count for _, count in counts)
    print(f"{used} names are looked up, {private} of them in vllm.v1; {len(faults)} are not as expected")
    return int(bool(faults))


@cache
def find_faults(root: Path, hooks: tuple[Hook, ...]) -> tuple[str, ...]:
    """One text for each hook that the packages under `root` lack or have in another form."""
    source = _SourceTree(root)
    return tuple(fault for module, path, names in hooks for fault in _compare(source, module, path, names.split()))


def _compare(source: "_SourceTree", module: str, path: str, names: Sequence[str]) -> Iterator[str]:
    where, definition = f"{module}.{path}".rstrip("."), source.look_up(module, path)
    if definition is None:
        yield f"{where} is missing"
        return
    present, expected = source.list_names(*definition), [name for name in names if name != OTHERS]
    is_function = isinstance(definition[1], _FUNCTIONS)
    if is_function and OTHERS not in names:
        if present != expected:
            yield f"{where} takes ({', '.join(present)}), not ({', '.join(expected)})"
        return
    kind = "parameter" if is_function else "attribute" if path else "mention of"
    yield from (f"{where} has no {kind} '{name}'" for name in expected if name not in present)


class _SourceTree:
    """Modules under a folder, each parsed once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}
        self._members: dict[ast.ClassDef, dict[str, _Found]] = {}

    def look_up(self, module: str, path: str) -> _Found | None:
        """The definition at this path, through imports and base classes."""
        tree = self._parse(module)
        if tree is None or not path:
            return None if tree is None else (module, tree)
        first, *rest = path.split(".")
        definition = self._find_name(module, first)
        for name in rest:
            if definition is None or not isinstance(definition[1], ast.ClassDef):
                return None
            definition = self._list_members(definition[0], definition[1]).get(name)
        return definition

    def list_names(self, module: str, node: ast.AST) -> list[str]:
        """Parameters of a function, members of a class, or all words of a module's code."""
        if isinstance(node, _FUNCTIONS):
            arguments = node.args
            names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            return [name for name in names if name not in ("self", "cls")]
        if isinstance(node, ast.ClassDef):
            return list(self._list_members(module, node))
        folder = self._root.joinpath(*module.split("."))
        modules = [file.stem for file in folder.iterdir()] if folder.is_dir() else []
        fields = ("id", "attr", "name", "arg", "value")
        words = (getattr(part, field, None) for part in ast.walk(node) for field in fields)
        return modules + [word for word in words if isinstance(word, str)]

    def _parse(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            base = self._root.joinpath(*module.split("."))
            files = (base.with_name(f"{base.name}.py"), base / "__init__.py")
            text = next((file.read_text("utf-8") for file in files if file.is_file()), None)
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]

    def _find_name(self, module: str, name: str) -> _Found | None:
        """A class or a function of a module, or of the module that it is imported from."""
        tree = self._parse(module)
        for node in _list_statements(tree.body) if tree is not None else ():
            if isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return self._find_name(self._name_origin(module, node), alias.name)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and ast.unparse(node.targets[0]) == name:
                return self._find_name(module, node.value.id)  # another name of the same
        return None

    def _name_origin(self, module: str, node: ast.ImportFrom) -> str:
        """The module that is imported from."""
        is_package = self._root.joinpath(*module.split("."), "__init__.py").is_file()
        return resolve_name("." * node.level + (node.module or ""), module if is_package else module.rpartition(".")[0])

    def _list_members(self, module: str, node: ast.ClassDef) -> dict[str, _Found]:
        """Attributes and methods of a class by name: of its bases, set by its methods, or named in its body."""
        if node in self._members:
            return self._members[node]
        members = self._members[node] = {}
        for base in reversed(node.bases):
            name = base.value if isinstance(base, ast.Subscript) else base
            definition = self._find_name(module, name.id) if isinstance(name, ast.Name) else None
            if definition is not None and isinstance(definition[1], ast.ClassDef):
                members |= self._list_members(definition[0], definition[1])
        for sub in ast.walk(node):
            if isinstance(sub, ast.Attribute) and isinstance(sub.ctx, ast.Store) and ast.unparse(sub.value) == "self":
                members.setdefault(sub.attr, (module, sub))
        for statement in node.body:
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            named = [target.id for target in targets if isinstance(target, ast.Name)]
            names = named or [getattr(statement, "name", "")]
            members |= dict.fromkeys(names, (module, statement))
        return members


def _list_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, also within `if` and `try`, where imports for type checkers stand."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _list_statements([*node.body, *node.orelse])


if __name__ == "__main__":
    sys.exit(main())
