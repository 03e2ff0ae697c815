"""Requests to an ASGI app without vLLM's server: one by hand, or many by a small server on loopback."""

import asyncio
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


async def talk(app, body, *, leaves_after=None, method="POST", path="/v1/completions", headers=(), whole=False):
    """Status and body of one request; the client leaves after so many messages. `whole` gives the headers, too."""
    sent, gone, read = [], asyncio.Event(), []

    async def receive():
        if not read:
            read.append(1)
            return {"type": "http.request", "body": json.dumps(body).encode()}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if len(sent) == leaves_after:
            gone.set()

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": list(headers),
        "query_string": b"",
        "app": app.app,
    }
    await app.middleware(scope, receive, send)
    status = sent[0]["status"] if sent else None
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * (len(sent) - 1)
    data = b"".join(message["body"] for message in sent[1:])
    return (status, data, dict(sent[0]["headers"])) if whole else (status, data)


@contextlib.contextmanager
def serve(app):
    """The address of a server for an ASGI app on loopback: a thread and a loop for each request, chunks as they come."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asyncio.run(self.answer())

        do_POST = do_HEAD = do_GET

        async def answer(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            read = []

            async def receive():
                if read:
                    await asyncio.Event().wait()
                read.append(1)
                return {"type": "http.request", "body": body}

            headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
            scope = {"type": "http", "method": self.command, "path": self.path, "headers": headers, "app": app.app}
            await app.middleware(scope, receive, self.send)

        async def send(self, message):
            if message["type"] == "http.response.start":
                self.send_response(message["status"])
                for name, value in message["headers"]:
                    self.send_header(name.decode(), value.decode())
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
            else:
                self.wfile.write(message["body"])

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
