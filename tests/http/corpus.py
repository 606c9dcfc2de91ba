"""Requests that no honest client sends: malformed, ambiguous, smuggling another one, or too large.

Each is followed by a request that is fine. Whoever reads the first as something else than what it
must be, a mistake, finds the second, or the one hidden in the first, and answers it.
"""

from __future__ import annotations

from typing import Final

INNER: Final = b"GET /health HTTP/1.1\r\nHost: inner\r\n\r\n"
SECOND: Final = b"GET /health HTTP/1.1\r\nHost: second\r\n\r\n"
_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


def post(fields: bytes, body: bytes = b"", line: bytes = b"POST /events/corpus HTTP/1.1") -> bytes:
    """Return a POST with these header lines, each with its end."""
    return b"%s\r\nHost: localhost\r\nContent-Type: text/plain\r\n%s\r\n%s" % (line, fields, body)


def get(
    fields: bytes = b"", line: bytes = b"GET /topics HTTP/1.1", host: bytes = b"localhost"
) -> bytes:
    """Return a GET with these header lines."""
    return b"%s\r\nHost: %s\r\n%s\r\n" % (line, host, fields)


_HIDDEN: Final = b"0\r\n\r\n" + INNER

# The framing of the body is in doubt, or the head is no HTTP: 400, 501 or 505, and the end.
HEADS: Final[dict[str, bytes]] = {
    "cl-te": post(b"Content-Length: %d\r\n%s" % (len(_HIDDEN), _CHUNKED), _HIDDEN),
    "te-cl": post(b"%sContent-Length: 4\r\n" % _CHUNKED, b"5c\r\n" + INNER + b"0\r\n\r\n"),
    "cl-cl-same": post(b"Content-Length: 1\r\nContent-Length: 1\r\n", b"x"),
    "cl-cl-differ": post(b"Content-Length: 0\r\nContent-Length: 37\r\n", INNER),
    "cl-list-same": post(b"Content-Length: 1, 1\r\n", b"x"),
    "cl-list-differ": post(b"Content-Length: 0, 37\r\n", INNER),
    "cl-plus": post(b"Content-Length: +1\r\n", b"x"),
    "cl-minus": post(b"Content-Length: -1\r\n", b"x"),
    "cl-hex": post(b"Content-Length: 0x1\r\n", b"x"),
    "cl-underscore": post(b"Content-Length: 1_0\r\n", b"0123456789"),
    "cl-space-inside": post(b"Content-Length: 1 0\r\n", b"0123456789"),
    "cl-float": post(b"Content-Length: 1.0\r\n", b"x"),
    "cl-superscript": post(b"Content-Length: \xb2\r\n", b"xx"),
    "cl-empty": post(b"Content-Length:\r\n", b"x"),
    "cl-word": post(b"Content-Length: one\r\n", b"x"),
    "cl-absurd": post(b"Content-Length: %s\r\n" % (b"9" * 5000), b"x"),
    "cl-nul": post(b"Content-Length: 1\x00\r\n", b"x"),
    "cl-name-space": post(b"Content-Length : 37\r\n", INNER),
    "te-name-space": post(b"Transfer-Encoding : chunked\r\n", _HIDDEN),
    "te-name-tab": post(b"Transfer-Encoding\t: chunked\r\n", _HIDDEN),
    "te-folded": post(b"Transfer-Encoding:\r\n chunked\r\n", _HIDDEN),
    "te-folded-tab": post(b"Transfer-Encoding:\r\n\tchunked\r\n", _HIDDEN),
    "te-twice": post(_CHUNKED * 2, _HIDDEN),
    "te-twice-in-one": post(b"Transfer-Encoding: chunked, chunked\r\n", _HIDDEN),
    "te-identity": post(b"Transfer-Encoding: identity\r\n", INNER),
    "te-identity-cl": post(b"Transfer-Encoding: identity\r\nContent-Length: 1\r\n", b"x"),
    "te-chunked-identity": post(b"Transfer-Encoding: chunked, identity\r\n", _HIDDEN),
    "te-chunked-gzip": post(b"Transfer-Encoding: chunked, gzip\r\n", _HIDDEN),
    "te-gzip": post(b"Transfer-Encoding: gzip\r\n", INNER),
    "te-unknown": post(b"Transfer-Encoding: xchunked\r\n", _HIDDEN),
    "te-unknown-then-chunked": post(b"Transfer-Encoding: x, chunked\r\n", _HIDDEN),
    "te-quoted": post(b'Transfer-Encoding: "chunked"\r\n', _HIDDEN),
    "te-parameter": post(b"Transfer-Encoding: chunked;x=y\r\n", _HIDDEN),
    "te-vertical-tab": post(b"Transfer-Encoding: \x0bchunked\r\n", _HIDDEN),
    "te-form-feed": post(b"Transfer-Encoding:\x0cchunked\r\n", _HIDDEN),
    "te-no-break-space": post(b"Transfer-Encoding: \xa0chunked\r\n", _HIDDEN),
    "te-nul": post(b"Transfer-Encoding: chunked\x00\r\n", _HIDDEN),
    "te-empty": post(b"Transfer-Encoding:\r\n", _HIDDEN),
    "te-empty-cl": post(b"Transfer-Encoding: \r\nContent-Length: 1\r\n", b"x"),
    "te-semicolon-list": post(b"Transfer-Encoding: chunked;, x\r\n", _HIDDEN),
    "no-length-http-1.0": post(b"", b"x", b"POST /events/corpus HTTP/1.0"),
    "te-http-1.0": post(_CHUNKED, _HIDDEN, b"POST /events/corpus HTTP/1.0"),
    "te-behind-cr": post(b"X: y\rTransfer-Encoding: chunked\r\n", _HIDDEN),
    "te-behind-lf": post(b"X: y\nTransfer-Encoding: chunked\r\n", _HIDDEN),
    "te-behind-nul": post(b"X: y\x00Transfer-Encoding: chunked\r\n", _HIDDEN),
    "bare-lf-head": post(b"Content-Length: 1\r\n", b"x").replace(b"\r\n", b"\n"),
    "bare-lf-line": get(b"X: y\n"),
    "bare-lf-end": b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\n",
    "bare-lf-first": b"GET /topics HTTP/1.1\nHost: localhost\r\n\r\n",
    "bare-cr-head": b"GET /topics HTTP/1.1\rHost: localhost\r\r",
    "cr-cr-lf": b"GET /topics HTTP/1.1\r\r\nHost: localhost\r\n\r\n",
    "cr-cr-lf-line": get(b"X: y\r\r\n"),
    "obs-fold": get(b"X: y\r\n z\r\n"),
    "obs-fold-first": b"GET /topics HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "obs-fold-empty": get(b"X: y\r\n \r\n"),
    "space-before-first-name": b"GET /topics HTTP/1.1\r\n X: y\r\nHost: localhost\r\n\r\n",
    "no-colon": get(b"no colon\r\n"),
    "no-name": get(b": y\r\n"),
    "name-nul": get(b"X\x00: y\r\n"),
    "name-latin": get(b"X\xe9: y\r\n"),
    "name-brackets": get(b"X[]: y\r\n"),
    "value-nul": get(b"X: a\x00b\r\n"),
    "value-del": get(b"X: a\x7fb\r\n"),
    "value-control": get(b"X: a\x01b\r\n"),
    "line-no-version": get(line=b"GET /topics"),
    "line-one-word": get(line=b"NONSENSE"),
    "line-empty-target": get(line=b"GET  HTTP/1.1"),
    "line-two-spaces": get(line=b"GET  /topics HTTP/1.1"),
    "line-tab": get(line=b"GET\t/topics\tHTTP/1.1"),
    "line-trailing-space": get(line=b"GET /topics HTTP/1.1 "),
    "line-space-in-target": get(line=b"GET /to pics HTTP/1.1"),
    "line-nul-in-target": get(line=b"GET /to\x00pics HTTP/1.1"),
    "line-latin-target": get(line=b"GET /to\xe9 HTTP/1.1"),
    "line-control-in-target": get(line=b"GET /to\x01 HTTP/1.1"),
    "line-cr-in-target": get(line=b"GET /to\rpics HTTP/1.1"),
    "line-no-slash": get(line=b"GET topics HTTP/1.1"),
    "line-asterisk": get(line=b"GET * HTTP/1.1"),
    "line-authority": get(line=b"GET t:80 HTTP/1.1"),
    "line-method-lower": get(line=b"get /topics HTTP/1.1"),
    "line-method-symbols": get(line=b"G{T /topics HTTP/1.1"),
    "line-method-long": get(line=b"A" * 40 + b" /topics HTTP/1.1"),
    "line-leading-space": get(line=b" GET /topics HTTP/1.1"),
    "version-0.9": get(line=b"GET /topics HTTP/0.9"),
    "version-1.2x": get(line=b"GET /topics HTTP/1.10"),
    "version-2": get(line=b"GET /topics HTTP/2.0"),
    "version-9": get(line=b"GET /topics HTTP/9.9"),
    "version-lower": get(line=b"GET /topics http/1.1"),
    "version-other": get(line=b"GET /topics ICE/1.0"),
    "version-digits": get(line=b"GET /topics HTTP/11.1"),
    "http2-preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    "host-missing": b"GET /topics HTTP/1.1\r\n\r\n",
    "host-twice": get(b"Host: other\r\n"),
    "host-slash": get(host=b"t/other"),
    "host-space": get(host=b"t other"),
    "host-at": get(host=b"user@t"),
    "host-comma": get(host=b"t, other"),
    "content-type-twice": post(b"Content-Type: text/html\r\nContent-Length: 1\r\n", b"x"),
    "expect-unknown": post(b"Expect: the-unexpected\r\nContent-Length: 1\r\n", b"x"),
    "proxy-protocol": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + get(),
    "leading-lines": b"\r\n" * 50 + b"\x00" + get(),
}

# The head is fine, the chunks are not: 400 and the end, and nothing is published.
CHUNKS: Final[dict[str, bytes]] = {
    name: post(_CHUNKED, body)
    for name, body in {
        "no-size": b"\r\nx\r\n0\r\n\r\n",
        "not-hex": b"g\r\nx\r\n0\r\n\r\n",
        "minus": b"-1\r\nx\r\n0\r\n\r\n",
        "plus": b"+1\r\nx\r\n0\r\n\r\n",
        "hex-prefix": b"0x1\r\nx\r\n0\r\n\r\n",
        "underscore": b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
        "leading-space": b" 1\r\nx\r\n0\r\n\r\n",
        "trailing-space": b"1 \r\nx\r\n0\r\n\r\n",
        "trailing-tab": b"1\t\r\nx\r\n0\r\n\r\n",
        "overflow": b"FFFFFFFFFFFFFFFF1\r\nx\r\n0\r\n\r\n",
        "absurd": b"1" * 5000 + b"\r\nx\r\n0\r\n\r\n",
        "size-lf": b"1\nx\r\n0\r\n\r\n",
        "size-cr": b"1\rx\r\n0\r\n\r\n",
        "size-nul": b"1\x00\r\nx\r\n0\r\n\r\n",
        "data-lf": b"1\r\nx\n0\r\n\r\n",
        "data-too-long": b"1\r\nxyz\r\n0\r\n\r\n",
        "data-too-short": b"5\r\nx\r\n0\r\n\r\n",
        "end-lf": b"1\r\nx\r\n0\n\n",
        "end-lf-only-last": b"1\r\nx\r\n0\r\n\n",
        "extension-lf": b"1;a=b\nx\r\n0\r\n\r\n",
        "extension-cr": b"1;a\rb\r\nx\r\n0\r\n\r\n",
        "extension-nul": b"1;a=\x00\r\nx\r\n0\r\n\r\n",
        "extension-open-quote": b'1;a="b\r\nx\r\n0\r\n\r\n',
        "extension-long": b"1;" + b"a" * 20_000 + b"\r\nx\r\n0\r\n\r\n",
        "trailer-no-colon": b"1\r\nx\r\n0\r\nnonsense\r\n\r\n",
        "trailer-length": b"1\r\nx\r\n0\r\nContent-Length: 37\r\n\r\n",
        "trailer-coding": b"1\r\nx\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "trailer-host": b"1\r\nx\r\n0\r\nHost: other\r\n\r\n",
        "trailer-fold": b"1\r\nx\r\n0\r\nX: y\r\n z\r\n\r\n",
        "trailer-lf": b"1\r\nx\r\n0\r\nX: y\n\r\n",
        "trailer-long": b"1\r\nx\r\n0\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
    }.items()
}  # fmt: skip

# Too much of what is fine: each with its status.
SIZES: Final[dict[str, tuple[int, bytes]]] = {
    "target": (414, get(line=b"GET /" + b"x" * 9_000 + b" HTTP/1.1")),
    "target-endless": (414, b"GET /" + b"x" * 200_000),
    "field": (431, get(b"X: " + b"y" * 9_000 + b"\r\n")),
    "field-endless": (431, b"GET / HTTP/1.1\r\nX: " + b"y" * 2_000_000),
    "fields": (431, get(b"".join(b"X%d: y\r\n" % number for number in range(200)))),
    "cl-large": (413, post(b"Content-Length: 999999999999\r\n", b"x")),
}

# Unusual, and right: each with the statuses of its answers, the second request's among them.
FINE: Final[dict[str, tuple[list[int], bytes]]] = {
    "get": ([200, 200], get()),
    "leading-line": ([200, 200], b"\r\n" + get()),
    "pipelined": ([200] * 21, get() * 20),
    "post": ([200, 200], post(b"Content-Length: 1\r\n", b"x")),
    "post-zeros": ([200, 200], post(b"Content-Length: 0001\r\n", b"x")),
    "chunked": ([200, 200], post(_CHUNKED, b"1\r\nx\r\n0\r\n\r\n")),
    "chunked-case": ([200, 200], post(b"transfer-ENCODING: ChUnKeD\r\n", b"01\r\nx\r\n0\r\n\r\n")),
    "chunked-hex": ([200, 200], post(_CHUNKED, b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n")),
    "chunked-extension": ([200, 200], post(_CHUNKED, b'1;a=b;c="d;e"\r\nx\r\n0;z\r\n\r\n')),
    "chunked-trailer": ([200, 200], post(_CHUNKED, b"1\r\nx\r\n0\r\nX-Sum: y\r\n\r\n")),
    "chunked-get": ([200, 200], get(_CHUNKED) + b"3\r\nabc\r\n0\r\n\r\n"),
    "length-get": ([200, 200], get(b"Content-Length: 3\r\n") + b"abc"),
    "head": ([200, 200], get(line=b"HEAD /topics HTTP/1.1")),
    "absolute": ([200, 200], get(line=b"GET http://t/topics HTTP/1.1")),
    "no-space-after-colon": ([200, 200], get(b"X:y\r\n")),
    "tabs-around-value": ([200, 200], get(b"X:\t y \t\r\n")),
    "underscore": ([200, 200], get(b"Content_Length: 37\r\n")),
    "empty-value": ([200, 200], get(b"X:\r\n")),
    "latin-value": ([200, 200], get(b"X: \xe9\r\n")),
    "close": ([200], get(b"Connection: close\r\n")),
    "close-in-a-list": ([200], get(b"Connection: x, Close\r\n")),
    "http-1.0": ([200], get(line=b"GET /topics HTTP/1.0")),
    "http-1.0-no-host": ([200], b"GET /topics HTTP/1.0\r\n\r\n"),
    "http-1.0-kept": ([200, 200], get(b"Connection: keep-alive\r\n", b"GET /topics HTTP/1.0")),
    "upgrade": ([200, 200], get(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n")),
    "expect-sent": ([200, 200], post(b"Expect: 100-continue\r\nContent-Length: 1\r\n", b"x")),
    "expect-1.0": (
        [200],
        post(
            b"Expect: 100-continue\r\nContent-Length: 1\r\n",
            b"x",
            b"POST /events/corpus HTTP/1.0",
        ),
    ),
}
