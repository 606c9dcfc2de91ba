"""Texts that would run, or change the page, where they are taken for markup."""

from __future__ import annotations

# Each ends another context of HTML, or runs in one; all together, for what is searched and typed.
CORPUS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    '" onmouseover="alert(1)" style="position:fixed;inset:0',
    "javascript:alert(1)",
    "</textarea></pre></title></style><script>alert(1)</script>",
    '<iframe srcdoc="<script>parent.alert(1)</script>"></iframe>',
    "--></script><script>alert(1)//",
    "]]><script>alert(1)</script>",
    "<base href=//127.0.0.1:1/><a href=x>x",
    "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
    "<link rel=stylesheet href=//127.0.0.1:1/x.css><style>*{display:none}</style>",
    "<form action=//127.0.0.1:1/><button>Publish",
    "<math><mtext><table><mglyph><style><!--</style><img title='--><img src onerror=alert(1)>'>",
    "<details open ontoggle=alert(1)><object data=javascript:alert(1)><embed src=javascript:1>",
    "{{ 7 * 7 }}${alert(1)}<%= 7 * 7 %>{% raw %}",
    "\u202ereversed\u2028line\ufeff\x1b[31mred\x07",
    "&lt;script&gt;alert(1)&lt;/script&gt;&#60;b&#62;",
    "`$(id)`; 'quoted' \\ \"twice\" | cat",
)
# Names as a users file may hold them: without colons and line breaks.
USERS = CORPUS[:4]
