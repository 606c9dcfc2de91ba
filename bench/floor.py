"""The floor: a bare Flask view that reads its body and answers a little JSON."""

from flask import Flask, request
from flask.typing import ResponseReturnValue

app = Flask(__name__)


@app.post("/events/<topic>")
def publish(topic: str) -> ResponseReturnValue:
    """Take the body and forget it."""
    request.get_data()
    return '{"serverTimeMs":0,"count":1}', 200, {"Content-Type": "application/json"}


@app.get("/ready")
def ready() -> ResponseReturnValue:
    """Say that the server answers."""
    return "{}"
