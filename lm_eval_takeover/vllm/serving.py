"""The process that `lm-eval-takeover serve` becomes: vLLM's server, and one line where it cannot go on."""

import sys


def main() -> int:
    """The words behind the module's name are options of `vllm serve`. Returns the exit status."""
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    try:
        serve()
    except Exception as error:
        from lm_eval_takeover.vllm.launch import explain

        print(f"error: vLLM's server cannot go on: {explain(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
