"""A small model hub in a thread: it creates repositories and branches, takes commits, and keeps what was uploaded."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_a_token_for_tests"


@dataclass
class Hub:
    """What the hub knows: repositories with their branches and files, and the requests it got."""

    address: str = ""
    created: dict[str, dict[str, Any]] = field(default_factory=dict)  # what was asked for, by name
    branches: set[str] = field(default_factory=lambda: {"main"})
    files: dict[str, bytes] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)  # by checksum
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    refuses: int | None = None  # the status of commits; 0 to close the connection without an answer


class Handler(BaseHTTPRequestHandler):
    """Answers the few requests of an upload. Files larger than a kilobyte are sent apart, as the hub's LFS does."""

    hub: Hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def body(self) -> bytes:
        """Return the body of the request, also if it is sent in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, content: object, status: int = 200) -> None:
        """Send an object as JSON."""
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.git-lfs+json" if "/info/lfs/" in self.path else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def handle_one(self) -> None:
        """Answer one request."""
        path, content = self.path.partition("?")[0], self.body()
        self.hub.requests.append(f"{self.command} {path}")
        if not path.startswith("/lfs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid credentials"}, 401)
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.hub.created[name] = asked
            return self.answer({"url": f"{self.hub.address}/{name}", "name": name, "id": name})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "branch" in parts:
            self.hub.branches.add(parts[-1])
            return self.answer({})
        if "preupload" in parts:
            asked = json.loads(content)["files"]
            return self.answer({"files": [self.mode_of(file) for file in asked]})
        if path.endswith("/info/lfs/objects/batch"):
            found = [self.place_of(entry) for entry in json.loads(content)["objects"]]
            return self.answer({"transfer": "basic", "objects": found})
        if path.startswith("/lfs/"):
            self.hub.large[hashlib.sha256(content).hexdigest()] = content
            return self.answer({})
        if "commit" in parts:
            return self.commit(content, parts[-1])
        return self.answer({"error": "not found"}, 404)

    def mode_of(self, file: dict[str, Any]) -> dict[str, Any]:
        return {"path": file["path"], "uploadMode": "lfs" if file["size"] > 1024 else "regular", "shouldIgnore": False}

    def place_of(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{entry['oid']}", "header": {}}}}

    def commit(self, content: bytes, branch: str) -> None:
        """Keep the files of a commit."""
        if self.hub.refuses == 0:
            self.close_connection = True
            return None
        if self.hub.refuses is not None:
            return self.answer({"error": "You have read access only."}, self.hub.refuses)
        if branch not in self.hub.branches:
            return self.answer({"error": "Invalid rev id"}, 404)
        for line in content.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.hub.messages.append(f"{branch}: {value['summary']}")
            elif entry["key"] == "file":
                self.hub.files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                self.hub.files[value["path"]] = self.hub.large[value["oid"]]
        url = f"{self.hub.address}/me/it/commit/0"
        return self.answer({"success": True, "commitOid": "0" * 40, "commitUrl": url, "hookOutput": ""})

    do_GET = do_POST = do_PUT = handle_one  # noqa: N815


@contextmanager
def fake_hub() -> Iterator[Hub]:
    """Yield a hub that answers until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
