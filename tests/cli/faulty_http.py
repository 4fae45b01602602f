"""An HTTP server that serves bytes, and does to a request what a list of faults says: for the tests of
`mlxfast fetch`. Nothing here waits for a while: a connection that hangs hangs until the server closes."""

import http.server
import re
import ssl
import threading
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.owner.answer(self)


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # clients that go away are part of the game


class FaultyServer:
    """faults[path]: one fault for each request to come, the plain answer afterwards; always[path]: for
    every request. A fault is a tuple, its name first: see faulty_*. seen: (path, headers) of each request.
    on_sent(total) is called as bytes go out."""

    def __init__(self, files, certificate=None, etag=True):
        self.files, self.faults, self.always, self.seen = dict(files), {}, {}, []
        self.etag, self.on_sent, self.sent = etag, None, 0
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.listener.owner = self
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.listener.socket = context.wrap_socket(self.listener.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.listener.server_address[1]}"
        self.thread = threading.Thread(target=self.listener.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self.listener.shutdown()
        self.listener.server_close()
        self.thread.join()

    def requests(self, path):
        return [headers for p, headers in self.seen if p == path]

    def tag(self, path):
        return f'"{len(self.files[path])}-{hash(self.files[path]) & 0xffffffff:08x}"' if self.etag else None

    # -- answering --

    def answer(self, h):
        path = urllib.parse.unquote(h.path.split("?")[0]).lstrip("/")
        with self.lock:
            self.seen.append((path, dict(h.headers)))
            queue = self.faults.get(path)
            fault = queue.pop(0) if queue else self.always.get(path, ("plain",))
        h.close_connection = True
        if fault[0] == "plain":
            self.plain(h, path)
        else:
            getattr(self, "faulty_" + fault[0])(h, path, *fault[1:])

    def wanted(self, h, path):
        """The offset that is asked for, or None; If-Range is honoured."""
        match = re.fullmatch(r"bytes=(\d+)-", h.headers.get("Range", ""))
        if not match or h.headers.get("If-Range", self.tag(path)) != self.tag(path):
            return None
        return int(match.group(1))

    def head(self, h, status, headers):
        h.send_response(status)
        for name, value in headers.items():
            if value is not None:
                h.send_header(name, str(value))
        h.send_header("Connection", "close")
        h.end_headers()

    def body(self, h, data):
        for at in range(0, len(data), 16384):
            piece = data[at:at + 16384]
            h.wfile.write(piece)
            with self.lock:
                self.sent += len(piece)
                total = self.sent
            if self.on_sent:
                self.on_sent(total)

    def send(self, h, path, start=None, **changed):
        """200, or 206 from start on; headers may be changed (None: left out), body and status too."""
        data = self.files[path]
        body, status = changed.pop("body", data[start or 0:]), changed.pop("status", None)
        headers = {"Content-Length": len(data) - (start or 0), "ETag": self.tag(path)}
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        headers.update({k.replace("_", "-"): v for k, v in changed.items()})
        self.head(h, status or (200 if start is None else 206), headers)
        self.body(h, body)

    def plain(self, h, path):
        if path not in self.files:
            return self.faulty_status(h, path, 404)
        start = self.wanted(h, path)
        if start is not None and start >= len(self.files[path]):
            return self.faulty_416(h, path)
        self.send(h, path, start)

    # -- faults --

    def faulty_status(self, h, path, status, **headers):
        text = b"<html>not what you want</html>"
        self.head(h, status, {"Content-Length": len(text),
                              **{k.replace("_", "-"): v for k, v in headers.items()}})
        h.wfile.write(text)

    def faulty_redirect(self, h, path, to, status=302):
        self.head(h, status, {"Location": to, "Content-Length": 0})

    def faulty_close(self, h, path):
        h.connection.close()

    def faulty_200(self, h, path):
        """The whole file, whatever range is asked for."""
        self.send(h, path)

    def faulty_truncate(self, h, path, count):
        """So many bytes of what the headers promise."""
        start = self.wanted(h, path)
        self.send(h, path, start, body=self.files[path][start or 0:][:count])

    def faulty_truncate200(self, h, path, count):
        self.send(h, path, body=self.files[path][:count])

    def faulty_unannounced(self, h, path, count):
        """So many bytes, no length: the end of the connection is all that tells."""
        self.send(h, path, Content_Length=None, body=(self.files[path] * 2)[:count])

    def faulty_earlier(self, h, path, by):
        self.send(h, path, max(0, self.wanted(h, path) - by))

    def faulty_later(self, h, path, by):
        self.send(h, path, self.wanted(h, path) + by)

    def faulty_unranged(self, h, path, value=None):
        """206 whose Content-Range is missing, or this."""
        self.send(h, path, self.wanted(h, path), Content_Range=value)

    def faulty_retagged(self, h, path):
        """206 of another version of the file, If-Range or not."""
        self.send(h, path, int(h.headers["Range"][6:-1]), ETag='"another"',
                  body=bytes(len(self.files[path]) - int(h.headers["Range"][6:-1])))

    def faulty_416(self, h, path, total=None):
        total = len(self.files[path]) if total is None else total
        self.faulty_status(h, path, 416, Content_Range=f"bytes */{total}")

    def faulty_length(self, h, path, count):
        self.send(h, path, Content_Length=count, body=(self.files[path] * 2)[:count])

    def faulty_garbage(self, h, path):
        start = self.wanted(h, path)
        self.send(h, path, start, body=bytes(len(self.files[path]) - (start or 0)))

    def faulty_encoded(self, h, path):
        self.send(h, path, Content_Encoding="gzip")

    def faulty_drip(self, h, path, count):
        """So many bytes, then nothing, and no end."""
        self.faulty_truncate(h, path, count)
        h.wfile.flush()
        self.closing.wait(60)
