"""An OpenAI-compatible server without a model, which writes down every request: what a client sends can be compared.

    python tests/harness/mock_server.py --record requests.jsonl            prints "listening on http://127.0.0.1:PORT"

Answers /v1/models, /v1/chat/completions and /v1/completions, streamed or whole. One token is one byte, of the prompt
and of the answer, as the tokenizer of `byte_tokenizer.py` has it, so a client that counts for itself comes to the
same numbers. An answer is as long as `max_tokens` asks, or `--longest` where that is less; it then says "stop"
instead of "length". `--fail-every N` answers each Nth request with status 500, `--delay` waits before each token.
A line of the record: {"body": {...}, "in_flight": 1, "method": "POST", "path": "/v1/chat/completions", "time": 1.5}.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

ANSWER = "The mock server says the same words again and again. "


class Server(ThreadingHTTPServer):
    """The server, its options and its record."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self, record: Path, port: int = 0, delay: float = 0.0, longest: int = 4096, fail_every: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.delay, self.longest, self.fail_every = delay, longest, fail_every
        self.file = record.open("w", encoding="utf-8")
        self.lock = threading.Lock()
        self.numbers = count(1)
        self.in_flight = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def note(self, method: str, path: str, body: Any) -> int:
        """Write a request down before it is answered; return its number."""
        with self.lock:
            row = {"body": body, "in_flight": self.in_flight, "method": method, "path": path, "time": time.time()}
            self.file.write(json.dumps(row, sort_keys=True) + "\n")
            self.file.flush()
            return next(self.numbers) if method == "POST" else 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the record says it."""

    def do_GET(self) -> None:
        self.server.note("GET", self.path, None)
        path = self.path.split("?")[0]
        if path == "/v1/models":
            self.whole(200, {"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "nobody"}]})
        elif path in ("/health", "/ready", "/ping"):
            self.whole(200, {"status": "ready"})
        else:
            self.whole(404, {"error": {"message": f"no route {path}"}})

    def do_POST(self) -> None:
        raw = self.read()
        try:
            body = json.loads(raw)
        except ValueError:
            self.server.note("POST", self.path, raw.decode("utf-8", "replace"))
            return self.whole(400, {"error": {"message": "the body is not JSON"}})
        with self.server.lock:
            self.server.in_flight += 1
        try:
            number = self.server.note("POST", self.path, body)
            if self.server.fail_every and number % self.server.fail_every == 0:
                self.whole(500, {"error": {"message": "fails on purpose"}})
            elif self.path in ("/v1/chat/completions", "/v1/completions") and isinstance(body, dict):
                self.answer(body, chat="chat" in self.path)
            else:
                self.whole(404, {"error": {"message": f"no route {self.path}"}})
        finally:
            with self.server.lock:
                self.server.in_flight -= 1

    def read(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, body: dict[str, Any], chat: bool) -> None:
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        n = min(asked, self.server.longest)
        tokens = list(islice(cycle(ANSWER), n))
        usage = {"prompt_tokens": prompt_tokens(body), "completion_tokens": n}
        usage["total_tokens"] = sum(usage.values())
        finish = "length" if n == asked else "stop"
        common = {
            "id": f"mock-{time.time_ns()}",
            "object": ("chat.completion" if chat else "text_completion"),
            "created": int(time.time()),
            "model": body.get("model", "mock"),
        }
        if not body.get("stream"):
            time.sleep(self.server.delay * n)
            text = "".join(tokens)
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, "finish_reason": finish, "logprobs": None, **said}
            return self.whole(200, {**common, "choices": [choice], "usage": usage})

        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if chat:
            common["object"] = "chat.completion.chunk"
        for i, token in enumerate(tokens):
            time.sleep(self.server.delay)
            role = {"role": "assistant"} if i == 0 else {}
            said = {"delta": {**role, "content": token}} if chat else {"text": token}
            self.event({**common, "choices": [{"index": 0, "finish_reason": None, **said}]})
        said = {"delta": {}} if chat else {"text": ""}
        self.event({**common, "choices": [{"index": 0, "finish_reason": finish, **said}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event({**common, "choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, document: dict[str, Any]) -> None:
        self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def whole(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def prompt_tokens(body: dict[str, Any]) -> int:
    """Bytes of all text in the prompt. A prompt of token ids has as many as ids."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and all(isinstance(x, int) for x in prompt):
        return len(prompt)
    return len(json.dumps(prompt).encode()) if isinstance(prompt, list) else sum(map(len, texts(body)))


def texts(body: dict[str, Any]) -> list[bytes]:
    """Return every text of a request's prompt: of `prompt`, or of the messages' contents and content parts."""
    if "messages" not in body:
        return [str(body.get("prompt") or "").encode("utf-8", "surrogatepass")]
    found = []
    for message in body["messages"]:
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else [p.get("text") or "" for p in content]
        found += [p.encode("utf-8", "surrogatepass") for p in parts]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True, help="where to write requests, one JSON document a line")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each token")
    parser.add_argument("--longest", type=int, default=4096, help="tokens of an answer at most")
    parser.add_argument("--fail-every", type=int, default=0, help="answer each Nth request with status 500")
    given = parser.parse_args()
    with Server(given.record, given.port, given.delay, given.longest, given.fail_every) as server:
        print(f"listening on {server.url}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
