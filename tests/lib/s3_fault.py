#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tests/lib/s3_fault.py UPSTREAM DIR [PORT] - a server of S3 that fails as told, before one that works.

Passes requests on to http://UPSTREAM. DIR/url has its own address; DIR/log a line of JSON for each request: method, path,
query, range, bytes (of the body that came), fault, status (None: no answer). DIR/rule, read at each request, is a line of
JSON:

	{"id": "any", "only": "REGEX of METHOD path?query range", "at": 3, "for": 1, "fault": "500"}

From the 3rd request that matches on, counted since `id` changed, 1 of them (0: all) fails:
	NNN	an answer with that status, and the <Code> that S3 has for it
	cut	the connection is closed, the request is not passed on
	lost	the request is passed on, and the connection is closed instead of its answer
	hang	no answer, until DIR/rule changes; then as cut
	late	passed on when DIR/rule changes
	rot	one byte of the answer is another one
	xml	none: the XML is as other servers write it. Keys have & as an entity and + for a space, tokens end with &&
"""
import http.client
import http.server
import json
import os
import re
import sys
import threading
import time

CODES = {"500": "InternalError", "503": "SlowDown", "403": "ExpiredToken", "412": "PreconditionFailed"}
PIECE = 1 << 16


def as_others_write(text):
    def key(found):
        return found[0].replace(b"%26", b"&amp;").replace(b"%27", b"&#39;").replace(b"%3C", b"&lt;").replace(b"%20", b"+")
    text = re.sub(b"<Key>.*?</Key>", key, text)
    return text.replace(b"</NextContinuationToken>", b"&amp;&#x26;</NextContinuationToken>")


class Rule:
    """The present rule, and how many requests matched it."""

    def __init__(self, path):
        self.path, self.lock, self.id, self.count = path, threading.Lock(), None, 0

    def read(self):
        try:
            with open(self.path, encoding="utf-8") as f:
                return json.load(f)
        except (OSError, ValueError):
            return {}

    def fault(self, what):
        """Of this request: (fault or None, id of the rule)."""
        with self.lock:
            rule = self.read()
            if rule.get("id") != self.id:
                self.id, self.count = rule.get("id"), 0
            if not rule.get("fault") or not re.search(rule.get("only", ""), what):
                return None, self.id
            self.count += 1
            n = self.count - rule["at"]
            hit = n >= 0 and (not rule["for"] or n < rule["for"])
            return (rule["fault"] if hit else None), self.id


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = rule = log = None
    lock = threading.Lock()

    def log_message(self, *args):
        pass

    def note(self, fault, status):
        path, _, query = self.path.partition("?")
        with self.lock:
            print(json.dumps({"method": self.command, "path": path, "query": query, "range": self.headers.get("Range"),
                              "bytes": self.came, "fault": fault, "status": status}), file=self.log, flush=True)

    def body(self):
        left, pieces = int(self.headers.get("Content-Length") or 0), []
        while left:
            piece = self.rfile.read1(min(left, PIECE))
            if not piece:
                raise ConnectionError("the client is gone")
            pieces.append(piece)
            left -= len(piece)
            self.came += len(piece)
        return b"".join(pieces)

    def pass_on(self, body):
        up = http.client.HTTPConnection(self.upstream, timeout=60)
        up.putrequest(self.command, self.path.replace("%26%26", ""), skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "connection":
                up.putheader(name, value)
        up.endheaders(body or None)
        answer = up.getresponse()
        return answer, answer.read()

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        if self.command != "HEAD" and not any(n.lower() == "content-length" for n, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def wait_for_another(self, rule):
        while self.rule.read().get("id") == rule:
            time.sleep(0.01)

    def serve(self):
        self.came, status = 0, None
        fault, rule = self.rule.fault(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        try:
            body = self.body()
            if fault in ("hang", "late"):
                self.note(fault, "waits")
                self.wait_for_another(rule)
            if fault in CODES:
                text = f"<?xml version='1.0'?><Error><Code>{CODES[fault]}</Code></Error>".encode()
                self.answer(int(fault), [("Content-Type", "application/xml")], text)
                status = int(fault)
                return
            if fault in ("cut", "hang"):
                self.close_connection = True
                return
            answer, text = self.pass_on(body)
            status = answer.status
            if fault == "lost":
                self.close_connection = True
                return
            if fault == "rot":
                text = text[:100] + bytes([text[100] ^ 1]) + text[101:]
            if fault == "xml" and text.startswith(b"<?xml"):
                headers = [h for h in answer.getheaders() if h[0].lower() != "content-length"]
                self.answer(status, headers, as_others_write(text))
                return
            self.answer(status, answer.getheaders(), text)
        except OSError:
            self.close_connection = True
        finally:
            self.note(fault, status)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # connections are cut all the time
            super().handle_error(request, client_address)


def main():
    upstream, top, *port = sys.argv[1:]
    Handler.upstream = upstream
    Handler.rule = Rule(f"{top}/rule")
    Handler.log = open(f"{top}/log", "a", encoding="utf-8")
    server = Server(("127.0.0.1", int(port[0]) if port else 0), Handler)
    with open(f"{top}/url.new", "w", encoding="ascii") as f:
        f.write(f"http://127.0.0.1:{server.server_port}")
    os.rename(f"{top}/url.new", f"{top}/url")
    server.serve_forever()


if __name__ == "__main__":
    main()
