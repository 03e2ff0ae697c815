"""Requests to the middleware without vLLM's server: one by hand, or many by uvicorn on loopback. Both come with vLLM."""

import asyncio
import contextlib
import json
import threading
import time


async def talk(app, body, *, leaves_after=None, method="POST", path="/v1/completions", headers=(), whole=False):
    """Status and body of one request; the client leaves after so many messages. `whole` gives the headers, too.

    `app.read` says then whether the body was read.
    """
    sent, gone = [], asyncio.Event()
    app.read = False

    async def receive():
        if not app.read:
            app.read = True
            return {"type": "http.request", "body": json.dumps(body).encode()}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if len(sent) == leaves_after:
            gone.set()

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b"", "app": app.app}
    await app.middleware(scope, receive, send)
    status = sent[0]["status"] if sent else None
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * (len(sent) - 1)
    data = b"".join(message["body"] for message in sent[1:])
    return (status, data, dict(sent[0]["headers"])) if whole else (status, data)


@contextlib.contextmanager
def serve(app):
    """The address of a server for a scripted app."""
    import uvicorn

    async def run(scope, receive, send):
        await app.middleware(scope | {"app": app.app}, receive, send)

    server = uvicorn.Server(uvicorn.Config(run, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()
