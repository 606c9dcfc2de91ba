"""A site of another origin on this machine, and what a page of its may try to do to the router."""

from __future__ import annotations

import ssl
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page

from tests.servers.certificates import Certificate
from tests.threaded_server import ThreadedServer

PAGE = b"""<!doctype html><meta charset="utf-8"><title>Prizes</title>
<p>You have won.</p>
<iframe name="sandbox" sandbox="allow-scripts allow-forms" src="/empty"></iframe>"""
EMPTY = b"<!doctype html><title>Empty</title>"
# What a form of the attacker's sends: the fields of all of the console's forms.
FIELDS = {
    "name": "evil",
    "partitions": "1",
    "confirm": "t",
    "to": "latest",
    "time": "",
    "format": "Text",
    "key": "evil",
    "message": "evil",
    "user": "anna",
    "password": "guessed",
    "next": "/console/",
}
BODY = '{"topicName": "evil", "messages": [{"value": "evil"}]}'
# Six at a time, as a browser asks one host; each resolves when it is over, whatever came of it: the
# router's answers are looked at elsewhere.
POOL = """
const pool = async (jobs) => {
  const next = async () => { while (jobs.length > 0) await jobs.pop()().catch(() => null); };
  await Promise.all(Array.from({ length: 6 }, next));
};
const over = (made, most) => new Promise((resolve) => {
  made.onload = made.onerror = made.onopen = resolve;
  setTimeout(resolve, most);
});
"""
FETCHES = f"""async ({{ routes, body }}) => {{{POOL}
  await pool(routes.flatMap(([method, url]) => {{
    const bare = method === "GET" || method === "HEAD";
    const init = {{ method, credentials: "include", cache: "no-store", body: bare ? null : body }};
    const headers = bare ? {{}} : {{ "Content-Type": "application/json" }};
    const modes = [{{ mode: "cors", headers }}];
    if (bare || method === "POST") modes.push({{ mode: "no-cors" }});
    return modes.map((mode) => () => fetch(url, {{
      ...init, ...mode, signal: AbortSignal.timeout(10000),
    }}));
  }}));
}}"""
FORMS = f"""async ({{ routes, fields, redirect }}) => {{{POOL}
  const kinds = ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data"];
  const calls = routes.filter(([method]) => method === "GET" || method === "POST");
  await pool(calls.map(([method, url], number) => async () => {{
    const frame = document.createElement("iframe");
    frame.name = `target${{number}}`;
    const form = document.createElement("form");
    form.method = method;
    form.action = number % 4 === 3 && method === "POST" ? redirect + encodeURIComponent(url) : url;
    form.enctype = kinds[number % kinds.length];
    form.target = frame.name;
    if (number % 2) form.rel = "noreferrer";
    for (const [name, value] of Object.entries(fields)) {{
      const field = document.createElement("input");
      field.name = name;
      field.value = value;
      form.append(field);
    }}
    document.body.append(form, frame);
    form.submit();
    await over(frame, 5000);
    frame.remove();
    form.remove();
  }}));
}}"""
ELEMENTS = f"""async ({{ routes }}) => {{{POOL}
  const makers = [
    ["img", "src"], ["script", "src"], ["iframe", "src"], ["video", "src"], ["embed", "src"],
    ["object", "data"], ["link", "href"],
  ];
  for (const [method, url] of routes) if (method === "POST") navigator.sendBeacon(url, "evil");
  await pool(routes.filter(([method]) => method === "GET").map(([, url], number) => async () => {{
    if (number % 10 === 0) {{
      const events = new EventSource(url, {{ withCredentials: true }});
      await over(events, 5000);
      events.close();
    }}
    const [name, source] = makers[number % makers.length];
    const made = document.createElement(name);
    if (name === "link") made.rel = "stylesheet";
    made[source] = url;
    document.body.append(made);
    await over(made, name === "embed" || name === "object" ? 300 : 5000);
    made.remove();
  }}));
}}"""


class OtherSite(ThreadedServer):
    """Serves a page, and sends POSTs on to where their query says."""

    def __init__(
        self, host: str, certificate: Certificate | None = None, page: bytes = PAGE
    ) -> None:
        server = _Server(("127.0.0.1", 0), _Handler)
        server.page = page
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.cert, certificate.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        super().__init__(server)
        self.url = f"{scheme}://{host}:{self.port}"

    def attack(self, page: Page, called: list[tuple[str, str]]) -> None:
        """Have a page of this site send all that it can to these methods and addresses."""
        page.evaluate(FETCHES, {"routes": called, "body": BODY})
        redirect = f"{self.url}/redirect?to="
        page.evaluate(FORMS, {"routes": called, "fields": FIELDS, "redirect": redirect})
        page.evaluate(ELEMENTS, {"routes": called})
        frame = page.frame(name="sandbox")
        assert frame is not None
        # Its origin is null.
        frame.evaluate(FETCHES, {"routes": called[::5], "body": BODY})


class _Server(ThreadingHTTPServer):
    page = PAGE


def _links(query: dict[str, list[str]]) -> bytes:
    links = [f'<p><a href="{escape(goal)}">Your prize</a></p>' for goal in query.get("link", [])]
    return "".join(links).encode()


class _Handler(BaseHTTPRequestHandler):
    timeout = 10

    def do_GET(self) -> None:
        """Answer the page."""
        assert isinstance(self.server, _Server)
        path = urlsplit(self.path)
        page = self.server.page + _links(parse_qs(path.query))
        self._answer(200, EMPTY if path.path == "/empty" else page, {})

    def do_POST(self) -> None:
        """Send the browser on, with method and body."""
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        goal = parse_qs(urlsplit(self.path).query)["to"][0]
        self._answer(307, b"", {"Location": goal})

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
