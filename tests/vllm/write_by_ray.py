"""Writes by engines of a running Ray cluster, one of which is killed after the first text.

    RAY_ADDRESS=HOST:PORT python write_by_ray.py < [model arguments, requests] > generations

Its last line is JSON: the tokens and takeovers of each text, and on how many nodes the engines ran.
"""

import json
import sys

import ray
import torch
from write_apart import open_backend, read_requests


def main() -> None:
    torch.set_num_threads(1)
    values, asked = json.load(sys.stdin)
    backend = open_backend(values)
    actors = backend.engine._group._actors
    nodes = {ray.get(actor.__ray_call__.remote(find_node)) for actor in actors}
    found = {}
    for index, one in backend.generate(read_requests(asked), seed=3):
        found[index] = [one.tokens, one.taken_over]
        if len(found) == 1:
            ray.kill(actors[0])
    backend.close()
    print(json.dumps({"texts": [found[i] for i in range(len(asked))], "nodes": len(nodes)}))


def find_node(worker):
    return ray.get_runtime_context().get_node_id()


if __name__ == "__main__":
    main()
