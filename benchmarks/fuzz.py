"""Files of a stranger, and bodies of a client, changed at random: how many were tried of each kind, and what went wrong.

    python benchmarks/fuzz.py [--kinds results journal …] [--number 200] [--seed 0]
    python benchmarks/fuzz.py --mixed_runs [--number 2000]                       # files of a run are copied over another's
    python benchmarks/fuzz.py --server http://127.0.0.1:8000 [--number 200]     # a running `lm-eval-takeover serve`

Every file must be read, or refused by an error of ours, within 20 s and 4 GiB. A failure prints its kind, its seed and the last
line of its traceback; `--seed SEED --number 1 --kinds KIND --raise` raises it again. A server must answer every body, with a
status below 500, and be there afterwards. A mixture of two runs must be refused, or read as one of them. Exit status 1 where
anything failed.
"""

import argparse
import collections
import logging
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from helpers.foreign_bodies import ROUTES, make_body, post  # type: ignore[import-not-found]
from helpers.foreign_files import KINDS, make_runs, make_sound, try_mix, try_one  # type: ignore[import-not-found]

from lm_eval_takeover.errors import TakeoverError

_SECONDS, _MEMORY = 20, 4 * 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--number", type=int, default=200, help="files of each kind (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first file; the next ones count on (default: 0)")
    parser.add_argument("--raise", dest="raises", action="store_true", help="stop at the first failure, with its traceback")
    parser.add_argument("--server", metavar="URL", help="try the routes of this server instead of files")
    parser.add_argument("--mixed_runs", action="store_true", help="copy files of one run over those of another instead")
    options = parser.parse_args()
    if options.server:
        return int(sum(try_route(options.server, route, options.seed, options.number) for route in ROUTES) > 0)
    signal.signal(signal.SIGALRM, _stop)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        sound = Path(folder) / "sound"
        if options.mixed_runs:
            logging.disable()  # what is moved aside is said each time
            truth = make_runs(sound)
            seeds = range(options.seed, options.seed + options.number)
            outcomes = collections.Counter(try_mix(sound, truth, Path(folder) / "mixed", seed) for seed in seeds)
            print(f"mixed runs   {len(seeds)} tried, {outcomes['refused']} refused, {outcomes['read']} read as one of the two, "
                  f"{outcomes['silent']} as a mixture", flush=True)  # fmt: skip
            return int(outcomes["silent"] > 0)
        make_sound(sound)
        before = resource.getrlimit(resource.RLIMIT_AS)[1]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, before))
        for kind in options.kinds:
            failures += try_kind(kind, sound, Path(folder) / "changed", options)
    return int(failures > 0)


def try_kind(kind: str, sound: Path, scratch: Path, options: argparse.Namespace) -> int:
    """Print a line on this kind, and one for each way in which it failed. Returns the number of failures."""
    refused, started = 0, time.process_time()
    failed: dict[str, list[int]] = collections.defaultdict(list)
    for seed in range(options.seed, options.seed + options.number):
        signal.alarm(_SECONDS)
        try:
            try_one(kind, sound, scratch, seed)
        except TakeoverError as error:
            refused += 1
            if len(str(error).splitlines()) > 1:
                failed[f"several lines: {str(error)[:100]!r}"].append(seed)
        except Exception as error:
            if options.raises:
                raise
            where = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in where if "lm_eval_takeover" in frame.filename]
            place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
            failed[f"{type(error).__name__} at {place}: {str(error)[:100]!r}"].append(seed)
        finally:
            signal.alarm(0)
    count = sum(map(len, failed.values()))
    seconds = time.process_time() - started
    print(f"{kind:12} {options.number} tried, {refused} refused, {count} failed, {seconds:.0f} s", flush=True)
    for line, seeds in failed.items():
        print(f"    {line} (seed {seeds[0]}, {len(seeds)} times)")
    return count


def try_route(url: str, route: str, first: int, number: int) -> int:
    """Print a line on this route, and one for each way in which it failed. Returns the number of failures."""
    answered, failed = 0, collections.defaultdict(list)
    for seed in range(first, first + number):
        try:
            status, text = post(url, route, make_body(route, seed))
        except OSError as error:
            status, text = 599, f"no answer: {error}"
        answered += status == 200
        if status >= 500:
            failed[f"{status} {text[:150]!r}"].append(seed)
    count = sum(map(len, failed.values()))
    print(f"{route:22} {number} tried, {answered} answered, {count} failed", flush=True)
    for line, seeds in failed.items():
        print(f"    {line} (seed {seeds[0]}, {len(seeds)} times)")
    return count


def _stop(*_: Any) -> None:
    raise TimeoutError(f"not read within {_SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
