"""A model hub on a loopback port: as much of its HTTP API as a download of one model uses."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class FakeHub:
    """One model, by revision: the files of each, and what was asked for."""

    def __init__(self, model_id: str, revisions: Mapping[str, Mapping[str, bytes]]) -> None:
        self.model_id = model_id
        self.files = dict(revisions)
        self.fetched: list[str] = []
        """Names of the files that were sent."""

    def commit(self, revision: str) -> str:
        return hashlib.sha1(revision.encode()).hexdigest()

    def find(self, revision: str) -> str | None:
        """Return the revision that a name or a commit means."""
        return next((one for one in self.files if revision in (one, self.commit(one))), None)


@contextmanager
def running_hub(hub: FakeHub) -> Iterator[str]:
    """Serve the model; yields the endpoint's URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, hub: FakeHub, *args: Any) -> None:
        self.hub = hub
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._file(is_sent=False)

    def do_GET(self) -> None:
        path = unquote(self.path).partition("?")[0]
        base = f"/api/models/{self.hub.model_id}/"
        if not path.startswith(base):
            self._file(is_sent=True)
            return
        what, _, name = path.removeprefix(base).partition("/")
        revision = self.hub.find(name)
        if revision is None:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        sizes = {name: len(content) for name, content in self.hub.files[revision].items()}
        info: Any = {"id": self.hub.model_id, "sha": self.hub.commit(revision)}
        if what == "revision":
            info["siblings"] = [{"rfilename": name} for name in sizes]
        else:  # "tree"
            info = [
                {"type": "file", "path": name, "size": size, "oid": self.hub.commit(name)}
                for name, size in sizes.items()
            ]
        self._answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _file(self, *, is_sent: bool) -> None:
        path = unquote(self.path).partition("?")[0].removeprefix(f"/{self.hub.model_id}/resolve/")
        commit, _, name = path.partition("/")
        revision = self.hub.find(commit)
        if revision is None or name not in self.hub.files[revision]:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = self.hub.files[revision][name]
        etag = hashlib.sha1(content).hexdigest()
        if is_sent:
            self.hub.fetched.append(name)
        self._answer(
            200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": self.hub.commit(revision)}
        )

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
