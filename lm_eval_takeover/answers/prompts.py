"""Headers of the tasks' prompts, where a response that runs on into an invented next problem ends."""

import re

# As `task_configs/` writes them before a problem; stop strings of the tasks and extraction both go by these.
HEADERS = ("Problem:", "Question:")

_INVENTED = (*HEADERS, "Q:")  # which base models write, too
_HEADER = re.compile(rf"^[ \t]*+(?:{'|'.join(map(re.escape, _INVENTED))})", re.MULTILINE)
# What announces that the problem is restated, so that no answer was possible before the header.
_ANNOUNCED = re.compile(
    r"[^\d\n$\\]{0,80}\b(?:restat|rewrit|begin|start|read|understand|look at|state|solv)[a-z]*\b[^\d\n$\\]{0,60}\s*",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?think>")


def cut_run_on(response: str) -> str:
    """The response up to the first header of a prompt at the start of a line, as the stop strings ask, never one inside thinking.

    A header before which no answer was possible, after the thinking or at the start, restates the problem and is left.
    """
    if not any(header in response for header in _INVENTED):
        return response
    answered = False
    for start, end in _list_outside_thinking(response):
        for found in _HEADER.finditer(response, start, end):
            before = response[start : found.start()].strip()
            if answered or (before and not _ANNOUNCED.fullmatch(before)):
                return response[: found.start()]
        answered |= bool(response[start:end].strip())
    return response


def _list_outside_thinking(response: str) -> list[tuple[int, int]]:
    """What neither follows a `<think>` nor precedes a `</think>`, as spans; a prompt may have opened the first thought."""
    tags = list(_TAG.finditer(response))
    starts = [(0, ""), *((tag.end(), tag[0]) for tag in tags)]
    ends = [*((tag.start(), tag[0]) for tag in tags), (len(response), "")]
    return [
        (start, end)
        for (start, opened), (end, closed) in zip(starts, ends, strict=True)
        if opened != "<think>" and closed != "</think>"
    ]
