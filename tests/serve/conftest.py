"""The server's tests; without vLLM, those that need it are left out."""

from pathlib import Path

from helpers import vllm_engines as shared

collect_ignore = shared.list_left_out(Path(__file__).parent, {"test_client_request.py"})
demo_folders, open_hf = shared.demo_folders, shared.open_hf
environment, nothing_is_collected = shared.environment_is_read_anew, shared.nothing_is_collected_by_hand
