"""A server of completions that adds two numbers, some of them wrongly; for tests of what asks such a server."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "adder"
Errs = Callable[[int, int], bool]


@contextlib.contextmanager
def adding_server(errs: Errs = lambda _a, _b: False) -> Iterator[str]:
    """Its base URL. errs: whether it adds those two wrongly."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions" or asked["model"] != MODEL:
                self._reply(404, {"error": f"no model {asked.get('model')} at {self.path}"})
                return
            self._reply(200, {"choices": [{"index": 0, "text": _completion(asked["prompt"], errs)}]})

        def _reply(self, status: int, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(prompt: str, errs: Errs) -> str:
    a, b = map(int, re.findall(r"(\d+) \+ (\d+)", prompt)[-1])
    return f" {a + b + errs(a, b)}"
