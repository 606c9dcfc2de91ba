"""A user of the console: pages of one browser context, and all that they do beside showing."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Error, Page, Request

PATIENCE_MS = 30_000
# Pages report what the policy kept them from; a report is an attack or a mistake of ours.
REPORTS = """
document.addEventListener("securitypolicyviolation", (event) => {
  window.reportViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""
OWN_SCHEMES = ("data", "blob", "about")


class Visitor:
    """A browser context that notes dialogs, errors, reports of the policy and foreign requests."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.noted: list[str] = []
        self.requests: list[str] = []
        self._expected: set[str] = set()
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.expose_binding("reportViolation", lambda _, text: self._note("policy", text))
        self.context.add_init_script(REPORTS)
        self.context.on("request", self._requested)
        self.context.on("dialog", self._asked)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self._note("error", str(error.error)))

    def __enter__(self) -> Self:
        """Return the visitor; its pages are closed at the end."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close all pages."""
        self.context.close()

    def page(self) -> Page:
        """Open an empty page."""
        return self.context.new_page()

    def check(self) -> None:
        """Raise AssertionError if anything was noted since the last check, and forget it."""
        noted, self.noted = self.noted, []
        found = [text for text in noted if not any(part in text for part in self._expected)]
        assert not found, found

    def expect_status(self, status: int) -> None:
        """Expect answers of this status, which the browser says in the console of the page."""
        self._expected.add(f"responded with a status of {status} ")

    def _note(self, kind: str, text: str) -> None:
        self.noted.append(f"{kind}: {text}")

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)
        found = urlsplit(request.url)
        if found.scheme not in OWN_SCHEMES and found.netloc != urlsplit(self.url).netloc:
            self._note("foreign", f"{request.method} {request.url}")

    def _asked(self, dialog: Dialog) -> None:
        self._note("dialog", f"{dialog.type} {dialog.message}")
        try:
            dialog.dismiss()
        except Error:
            pass  # the page went away with it

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self._note(message.type, f"{message.text} at {message.location.get('url', '')}")
